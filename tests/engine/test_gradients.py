"""Where nothing may be reused, everything is computed, nothing is stored, and the report says why."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from support.harness import accelerated, plain, reference, render
from support.toys import ToyDenoiser, by_embeds, toy_pipeline
from torch import Tensor
from zoo.pipelines import CASES

from diffcache import accelerate, denoising_run, report

STEPS = 8
METHODS: dict[str, dict[str, Any]] = {
    "uniform": {"interval": 4},
    "easycache": {"threshold": 2.0, "warmup_steps": 0},
}
each_method = pytest.mark.parametrize("method", METHODS)


def embed(mark: float) -> Tensor:
    return torch.full((1, 2, 4), mark)


def toy(method: str | None) -> ToyDenoiser:
    net = ToyDenoiser().eval()
    return net if method is None else accelerate(net, method, **METHODS[method])


def wan_loop(net: Any, x: Tensor, steps: int = 4) -> Tensor:
    with denoising_run(net, steps) as run:
        for i in range(steps):
            run.begin_step(i)
            x = x + net(x, torch.tensor([500.0]), embed_of_wan(), return_dict=False)[0] / 8
    return x


def embed_of_wan() -> Tensor:
    return CASES["WanPipeline"].call(0, 1)["prompt_embeds"]


@each_method
def test_gradients_flow_as_in_the_plain_denoiser(method: str) -> None:
    pipe = accelerated("WanPipeline", method, **METHODS[method])
    latent = torch.randn(1, 16, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    mine, theirs = latent.clone().requires_grad_(), latent.clone().requires_grad_()
    wan_loop(pipe.transformer, mine).square().sum().backward()
    wan_loop(plain("WanPipeline").transformer, theirs).square().sum().backward()
    assert mine.grad is not None
    assert torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]
    told = report(pipe.transformer)
    assert told.compute_fraction == 1
    assert told.cache_bytes == 0
    assert [len(places) for reason, places in told.reasons.items() if "gradients" in reason] == [4]
    assert any("gradients" in note for note in told.notes)


@each_method
def test_gradients_for_some_ticks_only(method: str) -> None:
    """A tick with gradients is computed and leaves nothing for the ticks without."""
    net, x = toy(method), torch.arange(1.0, 9.0).reshape(1, 2, 4)
    with denoising_run(net, STEPS) as run:
        for i in range(STEPS):
            run.begin_step(i)
            with torch.set_grad_enabled(i in (2, 3)):
                mark = 3.0 if i < 2 else 9.0  # the same branch with another prompt
                assert torch.equal(net(x, torch.ones(1), embed(3.0))[0], x + 3)
                if i in (2, 3):
                    assert torch.equal(net(x, torch.ones(1), embed(mark))[0], x + mark)
            x = x + 0.5
    told = report(net)
    assert {2, 3} <= set(told.computed_ticks)
    assert told.compute_fraction < 1


@each_method
def test_inference_mode_reuses(method: str) -> None:
    net, x = toy(method), torch.arange(1.0, 9.0).reshape(1, 2, 4)
    with torch.inference_mode(), denoising_run(net, STEPS) as run:
        for i in range(STEPS):
            run.begin_step(i)
            output = net(x, torch.ones(1), embed(3.0))[0]
            assert torch.equal(output, x + 3)
            x = x + (output - x) / 8
    assert report(net).compute_fraction < 1


@each_method
@pytest.mark.parametrize("name", ["WanPipeline", "StableDiffusionPipeline"])
def test_training_mode_computes_everything(name: str, method: str) -> None:
    pipe = accelerated(name, method, **METHODS[method])
    pipe.components[CASES[name].denoisers[0]].train()
    assert torch.equal(render(pipe, name), reference(name))
    told = report(pipe)
    assert told.compute_fraction == 1
    assert told.cache_bytes == 0
    assert any("training" in reason for reason in told.reasons)
    assert any("training" in note for note in told.notes)
    pipe.components[CASES[name].denoisers[0]].eval()
    render(pipe, name)
    assert report(pipe).compute_fraction < 1


@pytest.mark.parametrize(
    ("method", "options", "steps"),
    [
        ("easycache", {}, 1),
        ("easycache", {}, 2),
        ("easycache", {}, 3),
        ("easycache", {"warmup_steps": 6}, 7),
        ("uniform", {}, 1),
        ("uniform", {}, 2),
        ("uniform", {"warmup_steps": 3, "tail_steps": 2}, 5),
        ("uniform", {"warmup_steps": 0}, 2),
    ],
)
@pytest.mark.parametrize("name", ["WanPipeline", "FluxPipeline"])
def test_too_few_steps_run_uncached_and_say_so(
    name: str, method: str, options: dict[str, Any], steps: int
) -> None:
    pipe = accelerated(name, method, **options)
    assert torch.equal(render(pipe, name, steps=steps), reference(name, steps=steps))
    told = report(pipe)
    assert told.compute_fraction == 1
    assert len(told.notes) == 1
    assert "too few steps" in told.notes[0]


@each_method
def test_a_run_that_reused_nothing_says_why(method: str) -> None:
    off = {"uniform": {"interval": 1}, "easycache": {"threshold": 0}}
    pipe = accelerated("WanPipeline", method, **off[method])
    assert report(pipe).notes == ["no run yet"]
    render(pipe, "WanPipeline")
    assert len(report(pipe).notes) == 1
    assert "nothing was reused" in report(pipe).notes[0]
    assert "too few steps" not in report(pipe).notes[0]


# -- numbers that are none ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [3, 5])
def test_a_signal_that_is_no_number_computes_and_is_told(bad: float, at: int) -> None:
    net, plain_net, x = toy("easycache"), toy(None), torch.arange(1.0, 9.0).reshape(1, 2, 4)
    steps = 12
    with torch.no_grad(), denoising_run(net, steps) as run:
        for i in range(steps):
            run.begin_step(i)
            given = x.clone()
            given[0, 0, 0] = bad if i == at else given[0, 0, 0]
            output = net(given, torch.ones(1), embed(3.0))[0]
            expected = plain_net(given, torch.ones(1), embed(3.0))[0]
            assert torch.equal(output, expected) or i == at
            x = x + 0.5
    told = report(net)
    (reason,) = (reason for reason in told.reasons if "finite" in reason)
    bad_ticks = {tick for tick, _, _ in told.reasons[reason]}
    assert {at, at + 1} <= bad_ticks <= set(told.computed_ticks)
    assert set(range(at + 4, steps - 1)) - set(told.computed_ticks)  # and then it goes on


def test_a_relative_measure_never_divides_by_zero() -> None:
    """Outputs and latents that are all zero have no signal to speak of: nothing changes, and nothing is NaN."""
    net = toy("easycache")
    with torch.no_grad(), denoising_run(net, STEPS) as run:
        for i in range(STEPS):
            run.begin_step(i)
            assert torch.equal(net(torch.zeros(1, 2, 4), torch.ones(1), embed(0.0))[0], torch.zeros(1, 2, 4))
    assert report(net).num_ticks == STEPS
    moving = toy("easycache")
    with torch.no_grad(), denoising_run(moving, STEPS) as run:
        for i in range(STEPS):
            run.begin_step(i)
            x = torch.full((1, 2, 4), float(i) - 3)  # the output is zero at i == 0
            assert torch.equal(moving(x, torch.ones(1), embed(3.0))[0], x + 3)
    assert not any("finite" in reason for reason in report(moving).reasons)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_are_reduced_in_fp32(dtype: torch.dtype) -> None:
    """Sums and differences that no half-precision number can hold decide as in fp32."""

    def decisions(dtype: torch.dtype) -> list[int]:
        net = accelerate(ToyDenoiser().eval().to(dtype), "easycache", threshold=0.05, warmup_steps=0)
        signs = torch.tensor([1.0, -1.0]).repeat(32, 16, 4).to(dtype)
        with torch.no_grad(), denoising_run(net, STEPS) as run:
            for i in range(STEPS):
                run.begin_step(i)
                net(signs * (2.0**15 + i * 2.0**9), torch.ones(32, dtype=dtype), None)
        assert not any("finite" in reason for reason in report(net).reasons)
        return report(net).computed_ticks

    assert decisions(dtype) == decisions(torch.float32)
    assert len(decisions(dtype)) < STEPS


def test_one_pass_with_a_nan_leaves_the_other_alone() -> None:
    """A guidance pass whose conditioning is NaN makes its own output NaN, and nothing else."""
    embeds = by_embeds(uncond=float("nan"))
    pipe = accelerate(toy_pipeline(), "easycache", threshold=2.0, warmup_steps=0)
    image = pipe(embeds, passes=lambda step: ("cond", "uncond"))
    assert image.isnan().all()
    assert torch.equal(pipe(by_embeds()), toy_pipeline()(by_embeds()))


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *product(
            ["WanPipeline", "StableDiffusion3Pipeline"],
            ["fbcache", "pab", "taylorseer", "uniform-stack", "uniform-sub-layer"],
        ),
        *product(["StableDiffusionPipeline"], ["pab", "uniform-sub-layer"]),
    ],
)
def test_sites_inside_are_the_same_in_inference_mode(name: str, method: str) -> None:
    """There no composite operation is taken apart before the first call is traced."""
    kind, _, site = method.partition("-")
    options: dict[str, Any] = {"threshold": 9} if kind == "fbcache" else {}
    told, pictures = [], []
    for mode in (torch.no_grad, torch.inference_mode):
        pipe = accelerate(CASES[name].build(), kind, **options, **({"site": site} if site else {}))
        with mode():
            pictures.append(render(pipe, name).clone())
        told.append(report(pipe))
    assert torch.equal(*pictures)
    assert told[0].decisions.equal(told[1].decisions)
    assert told[0].compute_fraction == told[1].compute_fraction < 1
