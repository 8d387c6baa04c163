"""Recordings and what is made of them, on tiny pipelines and on numbers that can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.harness import dressed, reference
from zoo.pipelines import CASES

from diffcache import Schedule, accelerate, report, tune
from diffcache.config import CacheConfig
from diffcache.noise_schedulers.respacing import stretched
from diffcache.profiling.calibrating import calibrations, ertacache, repairs
from diffcache.profiling.recording.calling import accelerated
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.record import record
from diffcache.profiling.recording.recording import Curve, Recording
from diffcache.profiling.searching import tuning
from diffcache.profiling.searching.tuning import Tuner
from diffcache.recipes.budget import BudgetConfig
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.replay import RESPACED, ReplayConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.errors import ConfigError, ScheduleError, TargetError
from diffcache.schedulers.schedule import Model
from diffcache.schedulers.search.local import local_search

FLUX = CASES["FluxPipeline"]
STEPS = 8


def calls(count: int = 2) -> list[dict[str, Any]]:
    return [FLUX.call(seed, STEPS) for seed in range(count)]


def test_the_policy_refreshes_by_the_distance_to_the_last_refresh() -> None:
    drift = torch.full((6, 6), torch.nan, dtype=torch.float64)
    for s in range(6):
        for g in range(s):
            drift[s, g] = 0.1 * (s - g)
    recording = Recording({}, None, None, {("net", "0"): curve_of(drift)})
    assert ertacache.policy(recording, 1.0) == [0, 1, 2, 3, 4, 5]
    assert ertacache.policy(recording, 0.7) == [0, 2, 4, 5]
    assert ertacache.policy(recording, 0.5) == [0, 3, 5]


def test_with_two_denoisers_each_is_measured_by_its_own_refreshes() -> None:
    first, second = torch.full((2, 6, 6), torch.nan, dtype=torch.float64)
    for s in range(6):
        for g in range(s):
            own = first if s < 3 else second
            own[s, g] = 0.1 * (s - g) if (s < 3) == (g < 3) else torch.nan
    curves = {("high", "0"): curve_of(first), ("low", "0"): curve_of(second)}
    recording = Recording({}, None, None, curves)
    assert ertacache.policy(recording, 1.0) == [0, 1, 2, 3, 4, 5]
    assert ertacache.policy(recording, 0.7) == [0, 2, 3, 5]


def curve_of(drift: torch.Tensor) -> Any:
    ones = torch.ones(len(drift))
    return Curve(drift, ones, ones, ones, runs=1)


def frozen(pipe: Any, config: CacheConfig) -> Schedule:
    with accelerated(pipe, config):
        FLUX.render(pipe, 0, STEPS)
        schedule: Schedule = report(pipe).to_schedule()
    return schedule


@pytest.mark.parametrize(
    "config",
    [
        UniformConfig(interval=2, warmup_steps=1),
        UniformConfig(interval=3, order=1, basis="output"),
        BudgetConfig(speedup=2),
        EasyCacheConfig(threshold=0.3, warmup_steps=2),
        UniformConfig(interval=2, site="block"),
    ],
    ids=lambda config: str(config.name),
)
def test_corrections_do_no_harm_where_they_were_fitted(config: CacheConfig) -> None:
    """On static schedules of other methods; what is kept of them is never worse on the calls that they were fitted on."""
    pipe = FLUX.build()
    schedule = frozen(pipe, config)
    inside = set(schedule.table) != {"transformer"}
    repaired = repairs.corrected(pipe, calls(), schedule, respace=not inside)
    assert torch.equal(FLUX.render(pipe, 0, STEPS), reference("FluxPipeline", 0, STEPS))
    runs = FullRuns(pipe, calls())
    plain, kept = (runs.psnr(ReplayConfig(schedule=s)) for s in (schedule, repaired))
    reached = repaired.measured["psnr_calibration"]
    assert reached["schedule"] == pytest.approx(plain, abs=0.01)
    assert kept >= plain
    assert any(kept == pytest.approx(psnr, abs=0.01) for psnr in reached.values())
    assert repaired.table == schedule.table


def test_a_correction_is_kept_where_most_samples_gain() -> None:
    schedule = Schedule({}, {"net": {"all": "#-"}})

    def candidate(*psnrs: float) -> repairs.Candidate:
        return repairs.Candidate(schedule, torch.tensor(psnrs))

    plain = candidate(30, 31, 32, 33)
    assert repairs.chosen({"schedule": plain, "few": candidate(30, 39, 39, 32)}) == "schedule"
    assert repairs.chosen({"schedule": plain, "most": candidate(29, 32, 33, 34)}) == "most"
    assert (
        repairs.chosen({"schedule": plain, "a": candidate(31, 32, 33, 34), "b": candidate(31, 32, 34, 33)})
        == "a"
    )


def test_calls_that_give_other_pictures_each_time_are_refused() -> None:
    pipe = FLUX.build()
    free = [{name: value for name, value in call.items() if name != "generator"} for call in calls()]
    with pytest.raises(ConfigError, match="other pictures each time: give it a generator"):
        FullRuns(pipe, free)
    drawing = FullRuns(lambda **call: (torch.rand(1), pipe(**call))[1], calls())
    assert torch.equal(drawing.pictures, FullRuns(pipe, calls()).pictures)


def test_hindsight_is_one_more_correction_and_can_be_left_out() -> None:
    pipe = FLUX.build()
    runs, switches = FullRuns(pipe, calls()), {"rectify": False, "respace": False}
    schedule = frozen(pipe, UniformConfig(interval=2))
    assert list(repairs.candidates(runs, schedule, hindsight=False, **switches)) == ["schedule"]
    tried = repairs.candidates(runs, schedule, **switches)
    assert list(tried) == ["schedule", "schedule, hindsight"]
    plain, looking_back = (candidate.schedule for candidate in tried.values())
    assert not torch.equal(_render(pipe, looking_back), _render(pipe, plain))
    with accelerated(pipe, ReplayConfig(schedule=looking_back, hindsight=False)):
        switched_off = FLUX.render(pipe, 0, STEPS)
    assert torch.equal(switched_off, _render(pipe, plain))
    kept = repairs.corrected(pipe, calls(), schedule, **switches)
    assert kept.producer["corrections"]["kept"] == repairs.chosen(tried)
    inside = frozen(pipe, UniformConfig(interval=2, site="block"))
    assert list(repairs.candidates(runs, inside, **switches)) == ["schedule"]


def test_inside_a_denoiser_every_stream_is_repaired() -> None:
    pipe = FLUX.build()
    schedule = frozen(pipe, UniformConfig(interval=2, site="transformer_blocks.1"))
    repaired = repairs.rectified(pipe, calls(), schedule)
    assert {
        "transformer.transformer_blocks.1/cond/gain",
        "transformer.transformer_blocks.1/cond/1/gain",
    } <= set(repaired.corrections)
    plain, first, both = (
        _render(
            pipe,
            repairs.with_corrections(schedule, {n: t for n, t in repaired.corrections.items() if has(n)}),
        )
        for has in (lambda n: False, lambda n: "/1/" not in n, lambda n: True)
    )
    assert not torch.equal(plain, first)
    assert not torch.equal(first, both)
    with pytest.raises(ScheduleError, match="whole denoisers: calibrate with respace=False"):
        repairs.corrected(pipe, calls(), schedule)


def _render(pipe: Any, schedule: Schedule) -> torch.Tensor:
    with accelerated(pipe, ReplayConfig(schedule=schedule)):
        return FLUX.render(pipe, 0, STEPS)


def test_a_rebuilt_unconditional_pass_is_not_corrected() -> None:
    schedule = Schedule({"net": Model("Net", "0")}, {"net": {"all": "#-"}, "net.guidance": {"all": "#-"}})
    with pytest.raises(ScheduleError, match="unconditional pass cannot be corrected"):
        repairs.rectified(None, calls(), schedule)


def test_the_closed_loop_measures_where_reuse_leads() -> None:
    pipe = FLUX.build()
    begun = frozen(pipe, UniformConfig(interval=3))
    open_loop, closed = record(pipe, calls(1)), record(pipe, calls(1), along=begun)
    assert closed.num_ticks == STEPS
    computed = [tick for tick, mark in enumerate(begun.table["transformer"]["cond"]) if mark == "#"]
    assert computed[:3] == [0, 3, 6]
    change, along = open_loop.leading.drift, closed.leading.drift
    assert torch.equal(along[1, 0], change[1, 0])  # the first reuse is yet to be felt
    assert not torch.equal(along[2, 1], change[2, 1])
    schedule = ertacache.calibrate(pipe, calls(1), compute=0.5, closed=True, respace=False)
    settled = record(pipe, calls(1), along=repairs.with_corrections(schedule, {}))
    assert [
        i for i, mark in enumerate(schedule.table["transformer"]["all"]) if mark == "#"
    ] == ertacache.policy(settled, 0.5)


@pytest.mark.parametrize(
    ("name", "noise_scheduler"),
    [
        ("StableDiffusionPipeline", "DDIM"),
        ("StableDiffusionPipeline", "KDPM2"),
        ("FluxImg2ImgPipeline", None),
    ],
)
def test_steps_that_cannot_be_adjusted_are_refused(name: str, noise_scheduler: str | None) -> None:
    pipe, call = dressed(CASES[name].build(), noise_scheduler), CASES[name].call(0, STEPS)
    with pytest.raises(ScheduleError, match="leave respace off"):
        ertacache.calibrate(pipe, [call], rectify=False)
    assert ertacache.calibrate(pipe, [call], respace=False).measured


def test_calibrated_schedules_replay_and_their_corrections_can_be_switched_off(tmp_path: Path) -> None:
    pipe = FLUX.build()
    schedule = ertacache.calibrate(pipe, calls(), compute=0.5)
    assert schedule.decisions.sum() <= STEPS / 2
    folder = schedule.save_pretrained(tmp_path)
    accelerate(pipe, "ertacache", calibration=str(folder))
    with_repair = FLUX.render(pipe, 0, STEPS)
    accelerate(pipe, schedule)
    assert torch.equal(FLUX.render(pipe, 0, STEPS), with_repair)
    accelerate(pipe, "ertacache", calibration=str(folder), rectify=False, respace=False)
    assert FLUX.render(pipe, 0, STEPS).isfinite().all()


def test_respaced_runs_really_run_at_their_levels() -> None:
    pipe = FLUX.build()
    accelerate(pipe, UniformConfig(interval=2))
    FLUX.render(pipe, 0, STEPS)
    schedule = report(pipe).to_schedule()
    assert schedule.sigmas is not None
    levels = stretched(schedule.sigmas, 0.0, [1.0, 0.5] * (STEPS // 2))
    respaced = replace(
        schedule,
        corrections={RESPACED: torch.tensor(levels, dtype=torch.float64)},
        fitted_with=schedule.fingerprint(),
    )
    accelerate(pipe, respaced)
    FLUX.render(pipe, 0, STEPS)
    assert report(pipe).records[0].sigmas == pytest.approx(levels, rel=1e-5)
    with pytest.raises(ScheduleError, match=f"{STEPS} ticks and this run 6"):
        FLUX.render(pipe, 0, 6)
    accelerate(pipe, replace(respaced, fitted_with="something else"))
    with pytest.warns(UserWarning, match="dropped"):
        FLUX.render(pipe, 0, STEPS)
    assert report(pipe).records[0].sigmas == pytest.approx(schedule.sigmas)


def test_magcache_is_given_the_pipelines_own_ratios() -> None:
    config = calibrations.magcache(FLUX.build(), calls(), threshold=0.1)
    assert config.ratios is not None
    assert len(config.ratios) == STEPS
    assert config.ratios[0] == 1
    assert all(0.2 < ratio < 5 for ratio in config.ratios)


def test_and_with_two_denoisers_with_those_of_each() -> None:
    case = CASES["WanPipeline-two-experts"]
    ratios = calibrations.magcache(case.build(), [case.call(0, STEPS)]).ratios
    assert ratios is not None
    begins = [tick for tick, ratio in enumerate(ratios) if ratio == 1]
    assert begins == [0, 3]


def test_teacaches_polynomial_is_fitted_to_the_pipeline() -> None:
    pipe = FLUX.build()
    config = calibrations.teacache(pipe, calls(3))
    assert config.coefficients is not None
    assert len(config.coefficients) == 5
    assert np.isfinite(config.coefficients).all()
    with pytest.raises(ConfigError, match="calibrate on more steps or calls"):
        calibrations.teacache(pipe, [FLUX.call(0, 2)])
    assert torch.equal(FLUX.render(pipe, 0, STEPS), reference("FluxPipeline", 0, STEPS))


def test_a_threshold_is_found_for_a_share_of_compute() -> None:
    pipe = FLUX.build()
    config = calibrations.threshold_for(pipe, calls(1), EasyCacheConfig(warmup_steps=2), 0.7)
    accelerate(pipe, config)
    FLUX.render(pipe, 0, STEPS)
    assert 0.4 < report(pipe).compute_fraction <= 0.7
    with pytest.raises(ConfigError, match="more than 10% at any threshold"):
        calibrations.threshold_for(pipe, calls(1), EasyCacheConfig(warmup_steps=2), 0.1)
    with pytest.raises(ConfigError, match="no threshold"):
        calibrations.threshold_for(pipe, calls(1), UniformConfig(), 0.5)


def test_tune_counts_what_a_second_denoiser_must_compute() -> None:
    """Its first call cannot be reused, wherever ticks are placed."""
    case = CASES["WanPipeline-two-experts"]
    tuner = Tuner(case.build(), [case.call(seed, STEPS) for seed in range(2)])
    assert tuner.for_quality(0).measured["compute_fraction"] == 2 / STEPS
    for count in (2, 3, 4):
        assert tuner.for_speedup(STEPS / count).measured["compute_fraction"] <= count / STEPS


def test_tune_keeps_a_quality_on_prompts_that_it_has_not_seen(tmp_path: Path) -> None:
    pipe = FLUX.build()
    schedule = tune(pipe, calls(4), quality=30.0)
    assert schedule.measured["psnr_held_out"] >= 30
    assert schedule.measured["compute_fraction"] < 1
    accelerate(pipe, Schedule.from_pretrained(schedule.save_pretrained(tmp_path)))
    FLUX.render(pipe, 9, STEPS)
    assert report(pipe).compute_fraction == schedule.measured["compute_fraction"]
    accelerate(pipe, quality=30.0, prompts=calls(4))
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


def test_tune_finds_the_fewest_ticks_that_it_can() -> None:
    tuner = Tuner(FLUX.build(), calls(2))
    target = tuner.psnr(tuner.even(5, 1), apart=True)
    schedule = tuner.for_quality(target)
    assert tuner.keeps(schedule, target)
    enough = next(count for count in range(1, STEPS) if tuner.keeps(tuner.online(count), target))
    assert len(tuning.computed_ticks(schedule)) <= enough


def test_tune_moves_ticks_to_do_with_one_less() -> None:
    """Of the quality that is best within one move of what `speedup=` gives with one tick less."""
    tuner = Tuner(FLUX.build(), [FLUX.call(0, STEPS)] * 2)
    start = tuple(tuning.computed_ticks(tuner.online(4)))
    found = local_search([start], STEPS, tuner._loss, tuning.MOVES)
    assert found.ticks != start
    fewer = tuner._with_one_less(tuner.online(5), -found.loss)
    assert fewer is not None
    assert len(tuning.computed_ticks(fewer)) == 4
    assert tuner._with_one_less(tuner.online(5), 99.9) is None


def test_tune_leaves_out_passes_where_a_decibel_is_left() -> None:
    tuner = Tuner(FLUX.build(), calls(2))
    schedule = tuner.online(5)
    reached = tuner.psnr(schedule, apart=True)
    assert tuner._thinned(schedule, reached - tuning.CLOSE / 2) is schedule
    assert len(tuning.computed_ticks(tuner._thinned(schedule, reached - 20))) < 5
    guided = Schedule({}, {"net": {"cond": "##-#", "uncond": "##-#"}})
    assert tuning._without_last_pass(guided, 1).table == {"net": {"cond": "##-#", "uncond": "#/-#"}}
    assert tuning._without_last_pass(guided, 2) == guided


def test_tune_places_a_budget_better_than_even_spacing_does() -> None:
    tuner = Tuner(FLUX.build(), calls(2))
    placed, evens = tuner.for_speedup(2), [tuner.even(STEPS // 2, order) for order in (0, 1, 2)]
    assert tuner.psnr(placed, apart=True) >= max(tuner.psnr(even, apart=True) for even in evens)


def test_tune_keeps_a_budget_and_refuses_what_it_cannot_do() -> None:
    pipe = FLUX.build()
    assert tune(pipe, calls(2), speedup=2).measured["compute_fraction"] == 0.5
    for options in ({}, {"quality": 30.0, "speedup": 2.0}):
        with pytest.raises(ConfigError, match="either quality= or speedup="):
            tune(pipe, calls(2), **options)
    with pytest.raises(ConfigError, match="no reuse keeps"):
        tune(pipe, calls(2), quality=99.9)
