"""`max_cache_bytes`: every run keeps to it, the report says by what, and what cannot be kept to is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from language.tiny import tiny_llama
from support.harness import STEPS, counted, reference, render
from zoo.pipelines import CASES

from diffcache import ConfigError, TargetError, accelerate, denoising_run, plan, report, restore
from diffcache.planning import memory_bound
from diffcache.planning.memory_bound import worth_most
from diffcache.planning.plan import PlannedSite

METHOD: dict[str, Any] = {"interval": 3, "order": 1, "basis": "residual"}
PLACES = [
    ("WanPipeline", {}, 1),
    ("DiTPipeline", {}, 1),
    ("FluxPipeline-true-cfg", {"site": "sub-layer"}, 12),
]
each_place = pytest.mark.parametrize(("name", "options", "places"), PLACES, ids=str)


def bounded(name: str, bound: int | None, **options: Any) -> Any:
    return accelerate(CASES[name].build(), "uniform", max_cache_bytes=bound, **METHOD, **options)


def unbounded_bytes(name: str, **options: Any) -> int:
    pipe = bounded(name, None, **options)
    render(pipe, name)
    return report(pipe).cache_bytes


@each_place
def test_a_run_keeps_to_every_bound_that_it_can(name: str, options: dict[str, Any], places: int) -> None:
    """From what it would hold down to what it is refused at; what is foretold is what is held."""
    full = unbounded_bytes(name, **options)
    seen = []
    for bound in (full, full - 1, full // 3, full // 7, full // 20):
        pipe = bounded(name, bound, **options)
        if places == 1 and bound < full // 9:
            with pytest.raises(ConfigError, match="cannot do with less"):
                render(pipe, name)
            continue
        picture = render(pipe, name)
        told, foretold = report(pipe), plan(pipe, **CASES[name].call(0, STEPS))
        assert picture.isfinite().all()
        assert told.cache_bytes == foretold.cache_bytes <= bound
        assert told.compute_fraction == foretold.compute_fraction < 1
        assert list(foretold.notes) == told.notes
        seen.append(" ".join(told.notes))
    assert seen[0] == ""
    assert seen[1] == "features are kept in bfloat16"
    if places > 1:
        assert f"of {places} sites are computed at every tick" in seen[-1]
        assert "int8" in seen[-1]


def test_halves_of_either_kind_are_kept_in_eight_bits_where_there_is_no_room() -> None:
    name = "WanPipeline"
    for cache_dtype in ("bfloat16", "float16"):
        pipe = bounded(name, unbounded_bytes(name, cache_dtype=cache_dtype) - 1, cache_dtype=cache_dtype)
        render(pipe, name)
        assert report(pipe).notes == ["features are kept in int8"]


def test_places_that_save_most_work_for_their_bytes_are_kept() -> None:
    sites = [
        PlannedSite("net", name, "block", share, 0)
        for name, share in zip("abcd", (0.1, 0.4, 0.3, 0.2), strict=True)
    ]
    sizes = {("net", "a"): 10, ("net", "b"): 100, ("net", "c"): 40, ("net", "d"): 20}
    assert worth_most(sites, sizes, 75) == {("net", "a"), ("net", "c"), ("net", "d")}
    assert worth_most(sites, sizes, 35) == {("net", "a"), ("net", "d")}
    assert worth_most(sites, sizes, 170) == set(sizes)
    assert not worth_most([PlannedSite("net", "model", "model", 1.0, 0)], {("net", "model"): 1}, 100)


def test_a_bound_may_leave_an_expert_without_a_place_and_not_less_than_one() -> None:
    name = "WanPipeline-two-experts"
    least = min(
        site.cache_bytes
        for site in plan(
            bounded(name, None, site="block", cache_dtype="int8"), **CASES[name].call(0, STEPS)
        ).sites
    )
    pipe = bounded(name, least, site="block")
    assert render(pipe, name).isfinite().all()
    assert report(pipe).cache_bytes <= least
    assert report(pipe).compute_fraction < 1
    with pytest.raises(ConfigError, match=f"less than {least} bytes"):
        render(bounded(name, least - 1, site="block"), name)


def test_a_bound_that_is_large_enough_changes_nothing() -> None:
    name = "WanPipeline"
    pipe = bounded(name, 2**30)
    assert torch.equal(render(pipe, name), render(bounded(name, None), name))
    assert report(pipe).notes == []
    assert torch.equal(render(restore(pipe), name), reference(name))


def test_a_call_is_rehearsed_once_for_each_form() -> None:
    """The first call costs one denoiser call more; the next ones of its form nothing."""
    name = "WanPipeline"
    pipe, usual = bounded(name, 2**30), bounded(name, None)
    with counted(pipe, ("transformer",)) as calls, counted(usual, ("transformer",)) as fewer:
        render(usual, name)
        for extra in (1, 0, 0):
            render(pipe, name)
            assert calls["transformer"] == fewer["transformer"] + extra
            calls.clear()
        render(pipe, name, height=32)
        render(usual, name, height=32)
        assert calls["transformer"] == fewer["transformer"] / 2 + 1


def test_a_pipeline_that_computes_in_more_bits_than_before_is_planned_anew() -> None:
    name = "WanPipeline"
    pipe = accelerate(CASES[name].build().to(torch.bfloat16), "uniform", **METHOD)
    render(pipe, name)
    bound = report(pipe).cache_bytes
    accelerate(pipe, "uniform", max_cache_bytes=bound, **METHOD)
    for dtype, notes in ((torch.bfloat16, []), (torch.float32, ["features are kept in bfloat16"])):
        render(pipe.to(dtype), name)
        assert report(pipe).cache_bytes <= bound
        assert report(pipe).notes == notes


def test_numbers_of_numpy_are_numbers() -> None:
    """Calls that differ in such a number are planned apart: with two videos the cache is twice as large."""
    name = "WanPipeline"
    pipe = bounded(name, unbounded_bytes(name))
    for videos, notes in ((1, []), (2, ["features are kept in bfloat16"])):
        render(pipe, name, num_videos_per_prompt=np.int64(videos))
        assert report(pipe).notes == notes


def test_a_refused_call_leaves_everything_in_order() -> None:
    name = "WanPipeline"
    pipe = bounded(name, 8)
    with pytest.raises(ConfigError, match="max_cache_bytes=8"):
        render(pipe, name)
    assert torch.equal(render(restore(pipe), name), reference(name))
    render(bounded(name, 2**30), name)


@pytest.mark.parametrize("bound", [0, -1, 1.5, True, "1GB"])
def test_a_bound_is_a_number_of_bytes(bound: Any) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        bounded("WanPipeline", bound)


def test_targets_whose_loop_cannot_be_rehearsed_are_refused() -> None:
    pipe = CASES["WanPipeline"].build()
    with pytest.raises(ConfigError, match="pipeline"):
        accelerate(pipe.transformer, max_cache_bytes=2**20)
    with pytest.raises(ConfigError, match="pipeline"):
        accelerate(tiny_llama(), max_cache_bytes=2**20)
    accelerate(pipe, max_cache_bytes=2**20)
    with pytest.raises(TargetError, match="max_cache_bytes"), denoising_run(pipe.transformer, 4):
        pass


def test_a_bound_holds_in_the_first_call_too() -> None:
    """A UNet's depth needs two candidates before it is known, which is more than what is stored in the end."""
    name = "StableDiffusionPipeline"
    pipe = accelerate(CASES[name].build(), "uniform", site="depth 1")
    foretold = plan(pipe, **CASES[name].call(0, STEPS))
    assert foretold.first_call_bytes > foretold.cache_bytes
    accelerate(pipe, "uniform", site="depth 1", max_cache_bytes=foretold.cache_bytes)
    render(pipe, name)
    assert report(pipe).notes == ["features are kept in int8"]
    kept = plan(pipe, **CASES[name].call(0, STEPS))
    assert kept.first_call_bytes <= foretold.cache_bytes
    accelerate(pipe, "uniform", site="depth 1", max_cache_bytes=foretold.first_call_bytes)
    render(pipe, name)
    assert report(pipe).notes == []


def test_a_denoiser_that_lies_where_another_lay_is_planned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, own = list[Any](), memory_bound.plan_of
    monkeypatch.setattr(memory_bound, "id", lambda part: 0, raising=False)
    monkeypatch.setattr(memory_bound, "plan_of", lambda *args, **kw: plans.append(1) or own(*args, **kw))
    pipe = bounded("DiTPipeline", 10**9)
    for count in (1, 1, 2, 2):
        if count > len(plans) > 0:
            pipe.transformer = copy.deepcopy(pipe.transformer)
        render(pipe, "DiTPipeline")
        assert len(plans) == count
