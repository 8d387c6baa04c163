"""Faults that were found in Diffusers' own caches: ours does not have them.

Where it is quick, the test runs theirs as well. When a peer mends a fault, its half of the test fails and can be deleted.
"""

from __future__ import annotations

import pytest
import torch
from compatibility.levels import Cell
from compatibility.peers import (
    ALWAYS,
    DIFFUSERS,
    FAILS,
    FLUX,
    NOT_RUN,
    WAN,
    build,
    first_block,
    hooked,
    mag,
    taylor,
)
from diffusers import (
    FasterCacheConfig,
    PyramidAttentionBroadcastConfig,
)
from support.compiling import Graphs
from support.harness import STEPS, Abort, aborting, accelerated, reference, render
from zoo.denoisers import get, loop

from diffcache import TargetError, accelerate, denoising_run, report


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
    """Diffusers keeps one state for each module, not for each pass: at an interval of 2, uncond gets what cond computed."""
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
    pipelines = ", ".join(one.removesuffix("Pipeline") for one in REFUSED)
    fault(DIFFUSERS, f"first-block cache on {pipelines}: an error", FAILS)


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
    """They are resampled to the run's length: the last quarter computes in runs of any length."""
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
