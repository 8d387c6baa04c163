"""What holds on a CPU holds on a CUDA device too."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.coverage_checks import STEPS, run, same
from torch import Tensor
from zoo.denoiser_case import like
from zoo.denoisers import CASES
from zoo.pipelines import CASES as PIPELINES

from diffcache import accelerate, plan, report

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", ["FluxTransformer2DModel", "WanTransformer3DModel", "UNet2DConditionModel"])
def test_all_compute_is_exact_and_reuse_finite(name: str) -> None:
    on_cpu = CASES[name]
    case = replace(on_cpu, inputs=lambda generator, batch: like(on_cpu.inputs(generator, batch), Tensor.cuda))
    net = case.build().cuda()
    plain = run(case, net)
    accelerate(net, "easycache", threshold=0.0)
    assert same(run(case, net), plain)
    accelerate(net, "uniform", interval=2, order=1)
    assert all(torch.isfinite(x).all() for x in run(case, net))
    assert report(net).computed_ticks == [0, 2, STEPS - 1]


@pytest.mark.parametrize("options", [{}, {"site": "sub-layer"}], ids=str)
@pytest.mark.parametrize("dtype", [None, "bfloat16", "int8", "float8"])
def test_host_memory_changes_nothing_but_where_the_cache_is(
    dtype: str | None, options: dict[str, str]
) -> None:
    case = PIPELINES["FluxPipeline-true-cfg"].on("cuda")
    pipe, told, pictures = case.build(), [], []
    for device in (None, "cpu"):
        accelerate(pipe, "uniform", interval=3, order=1, cache_dtype=dtype, cache_device=device, **options)
        pictures.append(case.render(pipe, 0, 8))
        told.append(report(pipe))
    assert torch.equal(*pictures)
    assert told[1].host_bytes > 0.9 * told[0].cache_bytes
    assert told[1].cache_bytes < 0.1 * told[0].cache_bytes
    planned = plan(pipe, **case.call(0, 8))
    assert (planned.cache_bytes, planned.host_bytes) == (told[1].cache_bytes, told[1].host_bytes)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("uniform", {"interval": 2, "site": "block"}),
        ("uniform", {"interval": 2, "order": 1, "site": "stack"}),
        ("fbcache", {"threshold": 0.3}),
    ],
    ids=str,
)
def test_blocks_in_cuda_graphs_overwrite_nothing_that_is_cached(method: str, options: dict[str, Any]) -> None:
    """`mode="reduce-overhead"`: blocks return memory that the next call of a block writes to."""
    case = PIPELINES["FluxPipeline"].on("cuda")

    def picture(mode: str) -> Tensor:
        torch._dynamo.reset()
        pipe = case.build()
        pipe.transformer.compile_repeated_blocks(mode=mode)
        # Blocks that are compiled one by one need this without a cache too, or torch frees what the block before returned.
        pipe.transformer.register_forward_pre_hook(lambda *_: torch.compiler.cudagraph_mark_step_begin())
        accelerate(pipe, method, **options)
        return case.render(pipe, 0, 8)

    usual = picture("default")
    torch.testing.assert_close(picture("reduce-overhead"), usual, rtol=1e-3, atol=1e-3)


def test_a_bound_is_kept_by_host_memory_in_the_end() -> None:
    case = PIPELINES["FluxPipeline-true-cfg"].on("cuda")
    pipe = accelerate(case.build(), "uniform", site="sub-layer", max_cache_bytes=2048)
    assert case.render(pipe, 0, 8).isfinite().all()
    assert report(pipe).cache_bytes <= 2048
    assert report(pipe).notes == ["features are kept in host memory"]
