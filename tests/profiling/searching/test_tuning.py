"""tune keeps a quality or a speed-up, on prompts that its search has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from searches.flux_calls import FLUX, flux_calls
from zoo.pipelines import CASES

from diffcache import Schedule, accelerate, report, tune
from diffcache.profiling.searching import tuning
from diffcache.profiling.searching.tuning import Tuner
from diffcache.schedulers.errors import ConfigError, TargetError
from diffcache.schedulers.search.local import local_search

STEPS = 8


def test_tune_counts_the_first_call_of_a_second_denoiser() -> None:
    """Its first call cannot be reused, whatever ticks are chosen."""
    case = CASES["WanPipeline-two-experts"]
    tuner = Tuner(case.build(), [case.call(seed, STEPS) for seed in range(2)])
    assert tuner.for_quality(0).measured["compute_fraction"] == 2 / STEPS
    for count in (2, 3, 4):
        assert tuner.for_speedup(STEPS / count).measured["compute_fraction"] <= count / STEPS


def test_tune_keeps_a_quality_on_prompts_that_it_has_not_seen(tmp_path: Path) -> None:
    pipe = FLUX.build()
    schedule = tune(pipe, flux_calls(STEPS, 4), quality=30.0)
    assert schedule.measured["psnr_held_out"] >= 30
    assert schedule.measured["compute_fraction"] < 1
    accelerate(pipe, Schedule.from_pretrained(schedule.save_pretrained(tmp_path)))
    FLUX.render(pipe, 9, STEPS)
    assert report(pipe).compute_fraction == schedule.measured["compute_fraction"]
    accelerate(pipe, quality=30.0, prompts=flux_calls(STEPS, 4))
    FLUX.render(pipe, 9, STEPS)
    assert report(pipe).compute_fraction == schedule.measured["compute_fraction"]


@pytest.mark.parametrize("aim", [{}, {"quality": 30, "speedup": 2}, {"speedup": 0}, {"speedup": "2"}])
def test_tune_refuses_before_it_renders(aim: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"either quality= or speedup=|speedup must be a number >= 1"):
        tune(None, ["a", "b"], **aim)
    with pytest.raises(ConfigError, match="a list of at least two prompts"):
        tune(None, "ab", quality=30)
    with pytest.raises(ConfigError, match="quality='high': give a PSNR in dB"):
        tune(None, ["a", "b"], quality="high")  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="give it the pipeline"):
        tune(torch.nn.Linear(1, 1), ["a", "b"], quality=30)


def test_tune_computes_no_more_ticks_than_speedup_needs_for_a_quality() -> None:
    tuner = Tuner(FLUX.build(), flux_calls(STEPS))
    target = tuner.psnr(tuner.even(5, 1), held_out=True)
    schedule = tuner.for_quality(target)
    assert tuner.keeps(schedule, target)
    enough = next(count for count in range(1, STEPS) if tuner.keeps(tuner.online(count), target))
    assert len(schedule.computed_ticks) <= enough


def test_tune_moves_ticks_to_compute_one_tick_less() -> None:
    """The target is the best quality that so many moves find from both starts; neither start has it."""
    tuner = Tuner(FLUX.build(), [FLUX.call(0, STEPS)] * 2)
    more = tuner.online(5).computed_ticks
    starts = [tuner.online(4).computed_ticks, [tick for tick in more if tick != tuning._by_crowding(more)[0]]]
    found = local_search(starts, STEPS, tuner._loss, tuning.MOVES)
    assert list(found.ticks) not in starts
    fewer = tuner._with_one_less(tuner.online(5), -found.loss)
    assert fewer is not None
    assert len(fewer.computed_ticks) == 4
    assert tuner._with_one_less(tuner.online(5), 99.9) is None


def test_tune_leaves_guidance_passes_out_if_the_quality_is_well_above_its_target() -> None:
    tuner = Tuner(FLUX.build(), flux_calls(STEPS))
    schedule = tuner.online(5)
    reached = tuner.psnr(schedule, held_out=True)
    assert tuner._thinned(schedule, reached - tuning.MARGIN / 2) is schedule
    assert len(tuner._thinned(schedule, reached - 20).computed_ticks) < 5
    guided = Schedule({}, {"net": {"cond": "##-#", "uncond": "##-#"}})
    assert tuning._without_last_pass(guided, 1).table == {"net": {"cond": "##-#", "uncond": "#/-#"}}
    assert tuning._without_last_pass(guided, 2) == guided


@pytest.mark.parametrize("search", [False, True])
def test_tune_is_at_least_as_good_as_evenly_spread_ticks_where_it_searched(search: bool) -> None:
    tuner = Tuner(FLUX.build(), flux_calls(STEPS))
    placed, evens = (
        tuner.for_speedup(2, search=search),
        [tuner.even(STEPS // 2, order) for order in (0, 1, 2)],
    )
    assert tuner.mean_psnr(placed) >= max(map(tuner.mean_psnr, evens))
    assert placed.measured["psnr_held_out"] == round(tuner.psnr(placed, held_out=True), 2)


def test_tune_keeps_a_speedup_and_refuses_aims_that_it_cannot_reach() -> None:
    pipe = FLUX.build()
    assert tune(pipe, flux_calls(STEPS), speedup=2).measured["compute_fraction"] == 0.5
    for options in ({}, {"quality": 30.0, "speedup": 2.0}):
        with pytest.raises(ConfigError, match="either quality= or speedup="):
            tune(pipe, flux_calls(STEPS), **options)
    with pytest.raises(ConfigError, match="no reuse keeps"):
        tune(pipe, flux_calls(STEPS), quality=99.9)
