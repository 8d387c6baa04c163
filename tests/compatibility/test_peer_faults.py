"""Faults that were found in other caches for Diffusers: ours does not have them. Where it is quick, theirs is run as well.

What the peers do is measured here, not assumed: when one of them mends a fault, its half of the test fails, and goes.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import pytest
import torch
from attach.test_compile import Graphs
from compatibility.conftest import Cell
from coverage_checks import Held
from diffusers import (
    FasterCacheConfig,
    FirstBlockCacheConfig,
    FluxPipeline,
    MagCacheConfig,
    PyramidAttentionBroadcastConfig,
    TaylorSeerCacheConfig,
    WanPipeline,
)
from harness import STEPS, Abort, aborting, accelerated, reference, render
from torch import Tensor, nn
from zoo.denoisers import get, loop
from zoo.pipeline_case import quiet
from zoo.pipelines import CASES

from diffcache import ScheduleError, TargetError, accelerate, denoising_run, report, restore

FLUX, WAN = "FluxPipeline", "WanPipeline"
CACHE_DIT, DIFFUSERS, BOTH = "cache-dit", "Diffusers", "both"
FAILS, NOT_RUN = "fails", "not run"
ALWAYS = 1e9
"""A threshold at which everything is reused that may be."""


def build(name: str = FLUX) -> Any:
    return CASES[name].build()


def sharing(pipe: Any) -> Any:
    """Another pipeline over the same components, with a noise scheduler of its own."""
    own = type(pipe.scheduler).from_config(pipe.scheduler.config)
    return quiet(type(pipe)(**{**pipe.components, "scheduler": own}))


@contextmanager
def cache_dit() -> Iterator[Any]:
    """The package; what it has done to the pipelines' classes is undone at the end."""
    package = pytest.importorskip("cache_dit", reason="pip install diffcache[peers]")
    before = {cls: dict(vars(cls)) for cls in (FluxPipeline, WanPipeline)}
    try:
        yield package
    finally:
        for cls, members in before.items():
            for name in set(vars(cls)) - set(members):
                delattr(cls, name)
            for name, member in members.items():
                if vars(cls)[name] is not member:
                    setattr(cls, name, member)


def cached(package: Any, target: Any, threshold: float = ALWAYS, warmup: int = 1, **options: Any) -> Any:
    """With cache-dit, one block computed in front."""
    config = package.DBCacheConfig(
        Fn_compute_blocks=1,
        Bn_compute_blocks=0,
        residual_diff_threshold=threshold,
        max_warmup_steps=warmup,
        **options,
    )
    package.enable_cache(target, cache_config=config)
    return target


def hooked(config: Any, name: str = FLUX) -> Any:
    """A pipeline with one of Diffusers' caches."""
    pipe = build(name)
    pipe.transformer.enable_cache(config)
    return pipe


def first_block() -> FirstBlockCacheConfig:
    return FirstBlockCacheConfig(threshold=ALWAYS)


def mag(steps: int = STEPS) -> MagCacheConfig:
    return MagCacheConfig(num_inference_steps=steps, mag_ratios=[1.0] * steps, threshold=1.0)


def taylor(**options: Any) -> TaylorSeerCacheConfig:
    return TaylorSeerCacheConfig(cache_interval=3, disable_cache_before_step=2, **options)


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


# -- cache-dit ------------------------------------------------------------------------------------------------------


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
    """Passes are told apart by what they are, not by counting calls: without guidance there is one."""
    with cache_dit() as package:
        pipe = cached(package, build(WAN), warmup=2)
        ticks = full_ticks(pipe, WAN, pipe.transformer.blocks[-1], 1, guidance_scale=1.0)
        assert len(ticks) > 2
    pipe = accelerated(WAN, "fbcache", threshold=ALWAYS, warmup_steps=2, tail_steps=0)
    assert full_ticks(pipe, WAN, pipe.transformer.blocks[-1], 1, guidance_scale=1.0) == [0, 1]
    fault(CACHE_DIT, "guidance passes told apart by parity: without guidance the warm-up doubles", FAILS)


def test_the_second_expert_reuses(fault: Cell) -> None:
    """Warm-up is the run's, not each expert's: the second one needs only its first tick."""
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


# -- Diffusers ------------------------------------------------------------------------------------------------------


def test_never_a_silent_no_op(fault: Cell) -> None:
    assert torch.equal(render(hooked(taylor(), WAN), WAN), reference(WAN))
    pipe = accelerated(WAN, "taylorseer", interval=3)
    assert not torch.equal(render(pipe, WAN), reference(WAN))
    assert report(pipe).compute_fraction < 1
    with pytest.raises(TargetError, match="cannot be cached at 'depth 1'"):
        render(accelerated(WAN, "deepcache"), WAN)
    fault(
        DIFFUSERS, "TaylorSeer's patterns miss Wan's attentions: nothing is cached, and nothing said", FAILS
    )


def test_fastercache_on_a_guided_video_model(fault: Cell) -> None:
    theirs = FasterCacheConfig(
        spatial_attention_block_skip_range=2,
        current_timestep_callback=lambda: 500,
        attention_weight_callback=lambda _: 0.3,
    )
    with pytest.raises(IndexError):
        render(hooked(theirs, WAN), WAN)
    pipe = accelerated(WAN, "fastercache")
    assert render(pipe, WAN, steps=12).isfinite().all()
    assert report(pipe).compute_fraction < 1
    fault(DIFFUSERS, "FasterCache on Wan and Flux: IndexError", FAILS)


def test_attention_broadcast_keeps_the_passes_apart(fault: Cell) -> None:
    """Its state is one for each module, not one for each pass: at an interval of 2, uncond is given cond's."""
    theirs = PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=(-1, 1001),
        current_timestep_callback=lambda: 500.0,
    )
    steps = 12
    plain = reference(WAN, steps=steps)
    ours = render(accelerated(WAN, "pab", window=(-1.0, 2.0), cross_interval=1), WAN, steps=steps)
    lost = (render(hooked(theirs, WAN), WAN, steps=steps) - plain).abs().mean()
    assert lost > 3 * (ours - plain).abs().mean()
    fault(DIFFUSERS, "pyramid attention broadcast hands one guidance pass's attention to the other", FAILS)


def test_a_run_after_one_that_raised(fault: Cell) -> None:
    theirs = hooked(mag())
    clean = render(theirs, FLUX)
    with pytest.raises(Abort):
        render(theirs, FLUX, seed=1, callback_on_step_end=aborting(2))
    assert not torch.equal(render(theirs, FLUX), clean)
    pipe = accelerated(FLUX, "magcache", threshold=1.0, warmup_steps=1)
    clean = render(pipe, FLUX)
    with pytest.raises(Abort):
        render(pipe, FLUX, seed=1, callback_on_step_end=aborting(2))
    assert torch.equal(render(pipe, FLUX), clean)
    fault(DIFFUSERS, "a run that raised leaves its cache to the next one (MagCache, TaylorSeer, PAB)", FAILS)


def test_another_size_after_a_run_that_raised(fault: Cell) -> None:
    theirs = hooked(first_block())
    with pytest.raises(Abort):
        render(theirs, FLUX, callback_on_step_end=aborting(2))
    with pytest.raises(RuntimeError):
        render(theirs, FLUX, height=32, width=16)
    pipe = accelerated(FLUX, "fbcache", threshold=ALWAYS)
    clean = render(pipe, FLUX, height=32, width=16)
    with pytest.raises(Abort):
        render(pipe, FLUX, callback_on_step_end=aborting(2))
    assert torch.equal(render(pipe, FLUX, height=32, width=16), clean)
    fault(DIFFUSERS, "a run that raised, then another size: RuntimeError (first-block cache)", FAILS)


def test_a_modular_pipeline_repeats(fault: Cell) -> None:
    name = "FluxModularPipeline"
    theirs = build(name)
    theirs.transformer.enable_cache(taylor(use_lite_mode=True))
    with theirs.transformer.cache_context("cond"):
        first, second = render(theirs, name), render(theirs, name)
    assert not torch.equal(first, second)
    pipe = accelerated(name, "taylorseer", interval=3)
    first, second = render(pipe, name), render(pipe, name)
    assert torch.equal(first, second)
    fault(DIFFUSERS, "modular pipelines never reset the cache: the same call gives other pictures", FAILS)


REFUSED = {
    "FluxKontextPipeline": ValueError,
    "Flux2KleinPipeline": TypeError,
    "Kandinsky5T2VPipeline": ValueError,
    "ChromaPipeline": ValueError,
    "DiTPipeline": AttributeError,
}


@pytest.mark.parametrize("name", REFUSED)
def test_first_block_cache_on(name: str, fault: Cell) -> None:
    with pytest.raises(REFUSED[name]):
        render(hooked(first_block(), name), name)
    pipe = accelerated(name, "fbcache", threshold=ALWAYS)
    assert render(pipe, name).isfinite().all()
    assert 0 < report(pipe).compute_fraction < 1
    pipeline = name.removesuffix("Pipeline")
    fault(DIFFUSERS, f"first-block cache on {pipeline}: {REFUSED[name].__name__}", FAILS)


def test_a_failure_half_way_leaves_nothing(fault: Cell) -> None:
    case = get("BriaTransformer2DModel")
    theirs = case.build()
    with pytest.raises(ValueError, match="not registered"):
        theirs.enable_cache(first_block())
    left = [module for module in theirs.modules() if "_diffusers_hook" in module.__dict__]
    assert left
    assert not theirs.is_cache_enabled
    net = accelerate(case.build(), "fbcache", threshold=ALWAYS)
    with denoising_run(net, STEPS) as run:
        loop(case, net, num_steps=STEPS, branches=1, begin_step=run.begin_step)
    assert 0 < report(net).compute_fraction < 1
    fault(
        DIFFUSERS, "first-block cache on Bria fails half-way, and leaves hooks that cannot be removed", FAILS
    )


def test_ratios_are_those_of_the_run(fault: Cell) -> None:
    """They are resampled to its length: what computes at the end of one computes at the end of any."""
    pipe = accelerated(FLUX, "magcache", ratios=(1.0,) * 8 + (0.5,) * 8, warmup_steps=1)
    for steps in (8, 16, 32):
        render(pipe, FLUX, steps=steps)
        ticks = set(report(pipe).computed_ticks)
        assert ticks >= set(range(3 * steps // 4, steps))
        assert len(ticks) < steps
    fault(
        DIFFUSERS,
        "MagCache run with another number of steps than set: it protects and skips the wrong ones",
        NOT_RUN,
    )


# -- both -----------------------------------------------------------------------------------------------------------


def test_a_preview_in_a_callback(fault: Cell) -> None:
    def previewing(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == 2:
            render(sharing(pipe), FLUX, seed=7, steps=2)
        return kwargs

    theirs = hooked(first_block())
    alone = render(theirs, FLUX)
    assert not torch.equal(render(theirs, FLUX, callback_on_step_end=previewing), alone)
    pipe = accelerated(FLUX, interval=3)
    alone = render(pipe, FLUX)
    assert torch.equal(render(pipe, FLUX, callback_on_step_end=previewing), alone)
    fault(BOTH, "a preview in a callback that shares the transformer changes the picture", FAILS)


def test_a_copy_runs_its_own_blocks(fault: Cell) -> None:
    def tripled(net: nn.Module) -> nn.Module:
        other = copy.deepcopy(net)
        for block in [*other.transformer_blocks, *other.single_transformer_blocks]:
            for parameter in block.parameters():
                parameter.data.mul_(3)
        return other

    expected = build()
    expected.transformer = tripled(expected.transformer)
    expected_image = render(expected, FLUX)
    theirs = hooked(MagCacheConfig(num_inference_steps=STEPS, mag_ratios=[1.0] * STEPS, threshold=0.0))
    theirs.transformer = tripled(theirs.transformer)
    assert not torch.equal(render(theirs, FLUX), expected_image)
    pipe = accelerated(FLUX, interval=2)
    other = build()
    other.transformer = tripled(pipe.transformer)
    assert torch.equal(render(other, FLUX), expected_image)
    fault(BOTH, "a deep copy of the transformer runs the original's blocks", FAILS)


def test_a_sample_does_not_depend_on_its_neighbours(fault: Cell) -> None:
    def first(pipe: Any, others: int) -> Tensor:
        generators = [torch.Generator().manual_seed(seed) for seed in range(others + 1)]
        return render(pipe, FLUX, steps=12, num_images_per_prompt=others + 1, generator=generators)[0]

    theirs = [first(hooked(FirstBlockCacheConfig(threshold=0.25)), others) for others in (0, 3)]
    assert not torch.allclose(*theirs, atol=1e-4)
    pipe = accelerated(FLUX, "easycache", threshold=0.5, per_sample=True)
    torch.testing.assert_close(first(pipe, 0), first(pipe, 3), rtol=0, atol=1e-4)
    fault(BOTH, "a picture depends on its neighbours in the batch (here: ask for `per_sample`)", FAILS)


@pytest.mark.slow
def test_blocks_stay_compiled(fault: Cell) -> None:
    graphs = Graphs()
    theirs = hooked(mag())
    theirs.transformer.compile_repeated_blocks(backend=graphs)
    render(theirs, FLUX)
    blocks_compiled = graphs.executed
    torch._dynamo.reset()
    plain, ours = Graphs(), Graphs()
    pipe = build()
    pipe.transformer.compile_repeated_blocks(backend=plain, fullgraph=True)
    render(pipe, FLUX)
    torch._dynamo.reset()
    pipe = accelerated(FLUX, "magcache", threshold=0.0)
    pipe.transformer.compile_repeated_blocks(backend=ours, fullgraph=True)
    render(pipe, FLUX)
    assert ours.executed == plain.executed
    assert blocks_compiled < plain.executed // 2
    torch._dynamo.reset()
    fault(DIFFUSERS, "MagCache takes the blocks out of compilation", FAILS)


@pytest.mark.slow
def test_the_whole_model_compiles_in_one_graph(fault: Cell) -> None:
    for theirs in (hooked(first_block()), hooked(taylor()), hooked(mag())):
        torch._dynamo.reset()
        theirs.transformer.compile(backend=Graphs(), fullgraph=True)
        with pytest.raises(torch._dynamo.exc.TorchDynamoException):
            render(theirs, FLUX)
    torch._dynamo.reset()
    graphs = Graphs()
    pipe = accelerated(FLUX, interval=2)
    pipe.transformer.compile(backend=graphs, fullgraph=True)
    render(pipe, FLUX)
    assert (graphs.compiled, graphs.executed) == (1, 4)
    torch._dynamo.reset()
    fault(BOTH, "the whole model does not compile in one graph (Diffusers' caches run; cache-dit not)", FAILS)


def test_two_threads_over_one_denoiser(fault: Cell) -> None:
    pipe = accelerated(FLUX, interval=2)
    pipes = [pipe, accelerate(sharing(pipe), "uniform", interval=3)]
    alone = [render(p, FLUX, seed=i) for i, p in enumerate(pipes)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(4):
            images = list(pool.map(lambda i: render(pipes[i], FLUX, seed=i), range(2)))
            assert all(torch.equal(a, b) for a, b in zip(images, alone, strict=True))
    fault(BOTH, "two threads over one transformer: wrong pictures", NOT_RUN)
