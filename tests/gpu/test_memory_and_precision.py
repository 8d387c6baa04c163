"""What only a GPU shows: memory, streams, precision, several devices, and running out of memory."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.coverage_checks import run, same
from torch import Tensor, nn
from zoo.denoiser_case import Case, like
from zoo.denoisers import CASES
from zoo.pipelines import CASES as PIPELINES

from diffcache import accelerate, denoising_run
from diffcache.kernels.relative_l1 import l1_means

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("uniform", {"interval": 2, "order": 1}),
    ("uniform", {"interval": 2, "site": "sub-layer"}),
    ("fbcache", {"threshold": 0.3}),
]


def on(device: str, name: str, change: Callable[[Tensor], Tensor] = lambda x: x) -> Case:
    """A denoiser's case with its inputs on a device."""
    case = CASES[name]
    return replace(
        case,
        inputs=lambda generator, batch: like(case.inputs(generator, batch), lambda x: change(x.to(device))),
    )


def floating_to(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(dtype) if x.is_floating_point() else x


@pytest.mark.parametrize(("method", "options"), METHODS, ids=str)
def test_group_offload_with_streams_changes_nothing(method: str, options: dict[str, Any]) -> None:
    case, found = on("cuda", "WanTransformer3DModel"), []
    for offloads in (False, True):
        net: Any = case.build()
        if offloads:
            net.enable_group_offload(
                onload_device=torch.device("cuda"), offload_type="leaf_level", use_stream=True
            )
        else:
            net.cuda()
        accelerate(net, method, **options)
        found.append(_loop(case, net))
    assert same(*found)


def _loop(case: Case, net: nn.Module, ticks: int = 4) -> list[Tensor]:
    """What a denoiser returns for latents that change from tick to tick; its weights may be anywhere."""
    inputs, outputs = case.inputs(torch.Generator().manual_seed(0), 1), []
    with torch.no_grad(), denoising_run(net, ticks) as loop:
        for i in range(ticks):
            loop.begin_step(i)
            moved = {name: inputs[name] * (1 - 0.1 * i) for name in case.latents}
            outputs += [x.cpu() for x in case.output(net(**{**inputs, **moved}))]
    return outputs


def test_features_in_host_memory_are_pinned_and_leave_the_device() -> None:
    """48 blocks' features of 8 MB each: on the device all of them, from host memory a few at a time."""
    peaks = []
    for device in (None, "cpu"):
        net = _Wide(48).cuda().eval()
        x = torch.randn(1, 1024, 2048, device="cuda")
        accelerate(net, "uniform", interval=2, site="block", cache_device=device)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.no_grad(), denoising_run(net, 6) as loop:
            for i in range(6):
                loop.begin_step(i)
                net(x * (1 + i), torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    feature = 1024 * 2048 * 4
    assert peaks[0] >= 48 * feature
    assert peaks[1] <= 12 * feature


class _WideBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(2048, 2048)

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        change: Tensor = self.project(h) * t
        return h + change


class _Wide(nn.Module):
    """Blocks with as little memory of their own as their features take."""

    def __init__(self, number: int) -> None:
        super().__init__()
        shared = nn.Linear(2048, 2048)
        self.blocks = nn.ModuleList(_WideBlock() for _ in range(number))
        for block in self.blocks:
            block.project = shared

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, t)
        return x


@pytest.mark.parametrize("name", ["FluxTransformer2DModel", "WanTransformer3DModel"])
def test_autocast(name: str) -> None:
    case = on("cuda", name)
    net = case.build().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        plain = run(case, net)
        accelerate(net, "uniform", interval=1, site="sub-layer")
        assert same(run(case, net), plain)
        accelerate(net, "uniform", interval=2, site="sub-layer")
        assert all(torch.isfinite(x).all() for x in run(case, net))


@pytest.mark.parametrize(("method", "options"), METHODS, ids=str)
def test_bf16(method: str, options: dict[str, Any]) -> None:
    case = on("cuda", "FluxTransformer2DModel", floating_to(torch.bfloat16))
    net = case.build().to("cuda", torch.bfloat16)
    plain = run(case, net)
    accelerate(net, "uniform", interval=1, site="sub-layer")
    assert same(run(case, net), plain)
    accelerate(net, method, **options)
    reused = run(case, net)
    assert [x.dtype for x in reused] == [x.dtype for x in plain]
    assert all(torch.isfinite(x).all() for x in reused)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize(("method", "options"), METHODS, ids=str)
def test_a_device_that_is_not_the_current_one(method: str, options: dict[str, Any]) -> None:
    found = []
    for device in ("cuda:0", "cuda:1"):
        case = on(device, "FluxTransformer2DModel")
        net = accelerate(case.build().to(device), method, **options)
        found.append([x.cpu() for x in run(case, net)])
        large = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0)).to(device)
        torch.testing.assert_close(l1_means(large, 2 * large), l1_means.reference(large, 2 * large))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_running_out_of_memory_leaves_nothing_behind() -> None:
    case = PIPELINES["FluxPipeline"].on("cuda")
    pipe = accelerate(case.build(), "uniform", interval=2, site="sub-layer")
    plain = case.render(pipe, 0, 4)
    torch.cuda.synchronize()
    before, calls = torch.cuda.memory_allocated(), []

    def exhausts(module: nn.Module, given: Any, output: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            torch.empty(1 << 50, device="cuda")

    handle = pipe.transformer.transformer_blocks[0].register_forward_hook(exhausts)
    with pytest.raises(torch.OutOfMemoryError):
        case.render(pipe, 0, 8)
    handle.remove()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)
    assert torch.equal(case.render(pipe, 0, 4), plain)
