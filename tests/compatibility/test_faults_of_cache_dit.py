"""Faults that were found in cache-dit: our cache does not have them.

Where it is quick, the test runs theirs as well. When a peer mends a fault, its half of the test fails and can be deleted.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import pytest
import torch
from compatibility.levels import Cell
from compatibility.peers import (
    ALWAYS,
    CACHE_DIT,
    FAILS,
    FLUX,
    NOT_RUN,
    WAN,
    build,
    cache_dit,
    cached,
    sharing,
)
from support.coverage_checks import Held
from support.harness import STEPS, accelerated, reference, render
from torch import Tensor, nn
from zoo.denoisers import get, loop

from diffcache import ScheduleError, accelerate, denoising_run, report, restore


def full_ticks(pipe: Any, name: str, block: nn.Module, passes: int, **call: Any) -> list[int]:
    """Ticks at which a block that may be skipped is called by all guidance passes."""
    calls: Counter[int] = Counter()
    tick = 0

    def ends(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        nonlocal tick
        tick = step + 1
        return kwargs

    handle = block.register_forward_pre_hook(lambda module, args: calls.update([tick]))
    render(pipe, name, callback_on_step_end=ends, **call)
    handle.remove()
    return [tick for tick, count in sorted(calls.items()) if count == passes]


def test_two_pipelines_of_one_class(fault: Cell) -> None:
    with cache_dit() as package:
        for pipe in [cached(package, build()), cached(package, build())]:
            package.disable_cache(pipe)
        with pytest.raises(AttributeError):
            render(build(), FLUX)
    for pipe in [accelerated(FLUX), accelerated(FLUX)]:
        restore(pipe)
    assert torch.equal(render(build(), FLUX), reference(FLUX))
    fault(CACHE_DIT, "two pipelines on and off again: every pipeline of the class is broken", FAILS)


def test_a_pipeline_that_shares_the_denoiser(fault: Cell) -> None:
    with cache_dit() as package:
        other = sharing(cached(package, build()))
        assert not torch.equal(render(other, FLUX), reference(FLUX))
    pipe = accelerated(FLUX, interval=2)
    other = sharing(pipe)
    assert torch.equal(render(other, FLUX), reference(FLUX))
    accelerate(other, "uniform", interval=3)
    render(pipe, FLUX), render(other, FLUX)
    assert (report(pipe).computed_ticks, report(other).computed_ticks) == ([0, 2, 4, 5], [0, 3, 5])
    fault(
        CACHE_DIT,
        "a pipeline that shares the transformer is cached as well, and cannot have its own setting",
        FAILS,
    )


def test_enabling_again_replaces_the_setting(fault: Cell) -> None:
    with cache_dit() as package:
        pipe = cached(package, cached(package, build()), threshold=0.0)
        assert not torch.equal(render(pipe, FLUX), reference(FLUX))
    pipe = accelerate(accelerated(FLUX, interval=3), "easycache", threshold=0)
    assert torch.equal(render(pipe, FLUX), reference(FLUX))
    fault(CACHE_DIT, "enabled again with another threshold: ignored", FAILS)


def test_a_bare_denoiser_in_two_loops(fault: Cell) -> None:
    case = get("FluxTransformer2DModel")

    def twice(net: nn.Module) -> list[Tensor]:
        return [loop(case, net, num_steps=STEPS, branches=1, begin_step=lambda i: None)[0] for _ in range(2)]

    with cache_dit() as package:
        first, second = twice(cached(package, case.build()))
        assert not torch.equal(first, second)
    net, images = accelerate(case.build(), "uniform", interval=3), []
    for _ in range(2):
        with denoising_run(net, STEPS) as run:
            images += loop(case, net, num_steps=STEPS, branches=1, begin_step=run.begin_step)[:1]
    assert torch.equal(*images)
    fault(
        CACHE_DIT,
        "a transformer without its pipeline: the second loop begins with the first one's cache",
        FAILS,
    )


def test_one_pass_without_guidance(fault: Cell) -> None:
    """Passes are told apart by their arguments, not by counting calls: without guidance there is one."""
    with cache_dit() as package:
        pipe = cached(package, build(WAN), warmup=2)
        ticks = full_ticks(pipe, WAN, pipe.transformer.blocks[-1], 1, guidance_scale=1.0)
        assert len(ticks) > 2
    pipe = accelerated(WAN, "fbcache", threshold=ALWAYS, warmup_steps=2, tail_steps=0)
    assert full_ticks(pipe, WAN, pipe.transformer.blocks[-1], 1, guidance_scale=1.0) == [0, 1]
    fault(CACHE_DIT, "guidance passes told apart by parity: without guidance the warm-up doubles", FAILS)


def test_the_second_expert_reuses(fault: Cell) -> None:
    """The warm-up belongs to the run, not to each expert: the second one must compute only its first tick."""
    name = "WanPipeline-two-experts"
    pipe = accelerated(name, "fbcache", threshold=ALWAYS, warmup_steps=4, tail_steps=0)
    render(pipe, name, steps=12)
    second = [call for call in report(pipe).calls if call.site.startswith("transformer_2.") and call.cached]
    ticks = sorted({call.tick for call in second if call.computed})
    assert ticks == [min(call.tick for call in second)]
    assert len(second) > 2
    fault(CACHE_DIT, "two experts: the warm-up begins again with the second one", NOT_RUN)


@pytest.mark.parametrize("steps", [5, 7, 16, 20])
def test_a_budget_is_spread_at_any_number_of_steps(steps: int, fault: Cell) -> None:
    with cache_dit() as package:
        if steps < 8:
            with pytest.raises(AssertionError):
                package.steps_mask(total_steps=steps, mask_policy="fast")
        else:
            mask = package.steps_mask(total_steps=steps, mask_policy="ultra")
            assert max(len(list(run)) for computed, run in groupby(mask) if not computed) > steps // 2
    pipe = accelerate(build(), speedup=2.0)
    render(pipe, FLUX, steps=steps)
    told = report(pipe)
    assert told.compute_fraction <= 0.5
    gaps = [b - a for a, b in zip(told.computed_ticks, told.computed_ticks[1:], strict=False)]
    assert max(gaps) <= (2 * steps - 1) // max(len(told.computed_ticks) - 3, 1) + 1
    fault(CACHE_DIT, "ready-made step masks: bunched at 16 to 27 steps, an assertion at 5 and 7", FAILS)


def test_a_schedule_of_another_length_is_refused(fault: Cell) -> None:
    with cache_dit() as package:
        mask = {"steps_computation_mask": [1] * STEPS, "steps_computation_policy": "static"}
        pipe = cached(package, build(), **mask)
        ticks = full_ticks(pipe, FLUX, pipe.transformer.single_transformer_blocks[-1], 1, steps=STEPS + 3)
        assert ticks == list(range(STEPS))
    pipe = accelerated(FLUX, interval=2)
    render(pipe, FLUX)
    accelerate(pipe, report(pipe).to_schedule())
    with pytest.raises(ScheduleError, match="resample"):
        render(pipe, FLUX, steps=STEPS + 3)
    fault(CACHE_DIT, "a mask shorter than the run: every step after its end is reused", FAILS)


@pytest.mark.parametrize("name", ["FluxModularPipeline", "StableDiffusionPipeline"])
def test_modular_pipelines_and_unets(name: str, fault: Cell) -> None:
    with cache_dit() as package, pytest.raises(ValueError, match="not"):
        cached(package, build(name))
    pipe = accelerated(name, interval=2)
    render(pipe, name)
    assert report(pipe).computed_ticks == [0, 2, 4, 5]
    fault(CACHE_DIT, "modular pipelines and UNets are not supported", FAILS)


def test_defaults_suit_a_model_of_few_blocks(fault: Cell) -> None:
    with cache_dit() as package:
        package.enable_cache(pipe := build())
        with pytest.raises(AssertionError):
            render(pipe, FLUX)
    pipe = accelerate(build())
    assert torch.equal(render(pipe, FLUX), render(pipe, FLUX))
    fault(
        CACHE_DIT, "defaults ask for more blocks than a small model has: an assertion in the first run", FAILS
    )


def test_nothing_is_kept_after_the_run(fault: Cell) -> None:
    pipe = accelerated(FLUX, interval=2)
    with Held() as held:
        render(pipe, FLUX)
    assert held.references
    assert held.alive() == 0
    fault(CACHE_DIT, "buffers are kept alive until the next run", NOT_RUN)
