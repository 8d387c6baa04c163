"""Nothing that a run stored is alive after it, and `cache_bytes` tells what was held during it."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.coverage_checks import Held
from support.harness import (
    METHODS,
    STEPS,
    Abort,
    aborting,
    accelerated,
    counting_new_tensors,
    each_run,
    failing,
    fresh,
    part,
    render,
)
from support.toys import by_embeds, toy_pipeline
from zoo.pipelines import CASES

from diffcache import accelerate, report
from diffcache.config import GuidanceRule
from diffcache.engine.branch import Branch
from diffcache.engine.guidance_pass import RebuiltPass
from diffcache.engine.site_pass import SitePass
from diffcache.kernels.quantize import quantize_feature
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.prediction.predictors import Hold
from diffcache.reports.records import RunRecord
from diffcache.schedulers.guards import Guards
from diffcache.schedulers.interval import Interval
from diffcache.store.formats import Format
from diffcache.store.rings import StoreSetup


def ends_well(pipe: Any, name: str) -> BaseException | None:
    render(pipe, name)
    return None


def ends_by_callback(pipe: Any, name: str) -> BaseException | None:
    with pytest.raises(Abort) as caught:
        render(pipe, name, callback_on_step_end=aborting(3))
    return caught.value


def ends_by_interrupt(pipe: Any, name: str) -> BaseException | None:
    with pytest.raises(KeyboardInterrupt) as caught:
        render(pipe, name, callback_on_step_end=aborting(3, KeyboardInterrupt()))
    return caught.value


def ends_in_the_denoiser(pipe: Any, name: str) -> BaseException | None:
    with failing(part(pipe, CASES[name].denoisers[-1]), call=2), pytest.raises(Abort) as caught:
        render(pipe, name)
    return caught.value


def ends_in_the_noise_scheduler(pipe: Any, name: str) -> BaseException | None:
    steps = Counter[str]()
    step = pipe.scheduler.step

    def counting(*args: Any, **kwargs: Any) -> Any:
        steps.update(["all"])
        if steps["all"] == 4:
            raise Abort
        return step(*args, **kwargs)

    pipe.scheduler.step = counting
    with pytest.raises(Abort) as caught:
        render(pipe, name)
    del pipe.scheduler.step
    return caught.value


ENDS = [ends_well, ends_by_callback, ends_by_interrupt, ends_in_the_denoiser, ends_in_the_noise_scheduler]


@pytest.mark.parametrize("end", ENDS, ids=lambda function: function.__name__)
@each_run
def test_nothing_is_alive_after_a_run(
    name: str, end: Callable[[Any, str], BaseException | None], method: str
) -> None:
    pipe = fresh(name, method)
    with Held() as held:
        error = end(pipe, name)
    assert held.references
    gc.collect()
    assert not held.alive()
    del error


def test_what_a_forward_has_seen_of_its_units_is_dropped_when_it_fails() -> None:
    pipe = accelerate(CASES["FluxPipeline"].build(), "fbcache")
    with failing(pipe.transformer.transformer_blocks[1], call=2), pytest.raises(Abort) as caught:
        render(pipe, "FluxPipeline")
    watching = [one for one in gc.get_objects() if type(one) is SitePass]
    assert watching  # the error's traceback keeps it
    assert not any(map(vars, watching))
    del caught


def test_nothing_is_alive_after_a_prediction_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*args: Any) -> Any:
        raise torch.OutOfMemoryError

    pipe = fresh("WanPipeline", "uniform")
    monkeypatch.setattr("diffcache.store.streams.extrapolate", out_of_memory)
    with Held() as held, pytest.raises(torch.OutOfMemoryError) as caught:
        render(pipe, "WanPipeline")
    assert held.references
    gc.collect()
    assert not held.alive()
    del caught


@pytest.mark.parametrize("site", ["model", "block"])
def test_nothing_is_alive_after_storing_in_eight_bits_fails(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[str]()

    def out_of_memory(*args: Any) -> Any:
        calls.update(["all"])
        if calls["all"] > 6:
            raise torch.OutOfMemoryError
        return quantize_feature(*args)

    pipe = accelerated("WanPipeline", "uniform", interval=1, cache_dtype="int8", site=site)
    monkeypatch.setattr("diffcache.store.formats.quantize_feature", out_of_memory)
    with Held() as held, pytest.raises(torch.OutOfMemoryError) as caught:
        render(pipe, "WanPipeline")
    assert held.references
    gc.collect()
    assert not held.alive()
    del caught


def left_by(pipe: Any, name: str, end: Callable[[Any, str], BaseException | None]) -> Counter[Any]:
    """The shapes of the tensors that a run leaves behind, while its exception is held."""
    render(pipe, name)
    with counting_new_tensors() as new:
        error = end(pipe, name)
        left = new.shapes()
    del error
    return left


@pytest.mark.parametrize("end", ENDS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", ["WanPipeline"])
def test_a_run_leaves_what_the_plain_pipeline_leaves(
    name: str, end: Callable[[Any, str], BaseException | None]
) -> None:
    exact = accelerated(name, "easycache", threshold=0)
    assert left_by(exact, name, end) == left_by(CASES[name].build(), name, end)


def held_between_steps(pipe: Any, call: dict[str, Any]) -> list[int]:
    """How many bytes are alive at the end of each step of a render that were not before it."""
    weights: list[int] = []
    with counting_new_tensors() as new:

        def callback(pipe: Any, step: int, timestep: Any, kwargs: Any) -> Any:
            weights.append(new.bytes())
            return kwargs

        pipe(**call, callback_on_step_end=callback)
    return weights


def most_held(pipe: Any, plain: Any, call: Callable[[], dict[str, Any]]) -> int:
    """Most bytes that an accelerated pipeline holds beyond what the plain one holds at the same step."""
    held, usual = held_between_steps(pipe, call()), held_between_steps(plain, call())
    return max(mine - theirs for mine, theirs in zip(held, usual, strict=True))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["WanPipeline", "FluxPipeline-true-cfg", "StableDiffusionPipeline"])
def test_cache_bytes_are_what_was_held(name: str, method: str) -> None:
    case = CASES[name]
    pipe = fresh(name, method)
    assert most_held(pipe, case.build(), lambda: case.call(0, STEPS)) == report(pipe).cache_bytes > 0


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("FluxPipeline-true-cfg", "sub-layer"),
        ("StableDiffusionPipeline", "depth 1"),
        ("LTX2Pipeline", "stack"),
    ],
)
def test_cache_bytes_inside_are_what_was_held(name: str, site: str) -> None:
    case = CASES[name]
    pipe = accelerate(case.build(), "uniform", interval=3, site=site)
    assert most_held(pipe, case.build(), lambda: case.call(0, STEPS)) == report(pipe).cache_bytes > 0


@pytest.mark.parametrize(
    ("name", "tokens", "channels"), [("WanPipeline", 2, 24), ("FluxPipeline-true-cfg", 16 + 6, 32)]
)
def test_a_stack_holds_one_tensor_for_each_stream_and_branch(name: str, tokens: int, channels: int) -> None:
    case = CASES[name]
    pipe = accelerate(case.build(), "uniform", interval=3, site="stack")
    held = most_held(pipe, case.build(), lambda: case.call(0, STEPS))
    assert held == report(pipe).cache_bytes == 2 * tokens * channels * torch.float64.itemsize


def test_what_an_expert_held_no_longer_counts_when_it_has_handed_over() -> None:
    """The second one's ring is full only after the first one's has been dropped."""
    case = CASES["WanPipeline-two-experts"]
    pipe = accelerate(case.build(), "uniform", interval=5, order=2)
    assert most_held(pipe, case.build(), lambda: case.call(0, 20)) == report(pipe).cache_bytes > 0


def test_what_the_leading_pass_returned_counts_while_the_other_one_waits_for_it() -> None:
    guidance = RebuiltPass("net", GuidanceRule(Interval(2)), Guards(0, 0), RunRecord())
    output = torch.randn(2, 3)
    guidance.lead(0, Branch("cond", None, StoreSetup(Hold(), Format(), Timetable(4))), (output,))
    assert list(guidance.tensors()) == [output]


def test_conditioning_that_only_the_cache_keeps_is_counted() -> None:
    """Embeddings made anew at each step are nobody's but the cache's between steps."""
    call = {"embeds": by_embeds(), "remade": True, "contexts": False}
    pipe = accelerate(toy_pipeline(), "uniform", interval=2)
    assert most_held(pipe, toy_pipeline(), lambda: call) == report(pipe).cache_bytes > 0
