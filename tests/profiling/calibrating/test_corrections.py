"""Corrections do no harm on the calls that they were fitted on, and are only kept if most samples gain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.harness import reference
from support.searches.flux_calls import FLUX, flux_calls

from diffcache import Schedule, accelerate, report
from diffcache.config import CacheConfig
from diffcache.noise_schedulers.respacing import stretched
from diffcache.profiling.calibrating import corrections
from diffcache.profiling.calibrating.corrections import Corrections, calibrate_corrections
from diffcache.profiling.recording.calling import accelerated
from diffcache.profiling.recording.frozen import frozen
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.schedule_fields import RESPACED
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.schedule import Model

STEPS = 8


@pytest.mark.parametrize(
    "config",
    [
        UniformConfig(interval=2, warmup_steps=1),
        UniformConfig(interval=3, order=1, basis="output"),
        TrajectoryConfig(speedup=2),
        EasyCacheConfig(threshold=0.3, warmup_steps=2),
        UniformConfig(interval=2, site="block"),
    ],
    ids=lambda config: str(config.name),
)
def test_corrections_do_no_harm_where_they_were_fitted(config: CacheConfig) -> None:
    """On static schedules of other methods; what is kept of them is never worse on the calls that they were fitted on."""
    pipe = FLUX.build()
    schedule = frozen(pipe, FLUX.call(0, STEPS), config)
    inside = set(schedule.table) != {"transformer"}
    repaired = calibrate_corrections(pipe, flux_calls(STEPS), schedule, Corrections(respace=not inside))
    assert torch.equal(FLUX.render(pipe, 0, STEPS), reference("FluxPipeline", 0, STEPS))
    runs = FullRuns(pipe, flux_calls(STEPS))
    plain, kept = (runs.psnr(ReplayConfig(schedule=s)) for s in (schedule, repaired))
    reached = repaired.measured["psnr_calibration"]
    assert reached["schedule"] == pytest.approx(plain, abs=0.01)
    assert kept >= plain
    assert any(kept == pytest.approx(psnr, abs=0.01) for psnr in reached.values())
    assert repaired.table == schedule.table


def test_a_correction_is_kept_where_most_samples_gain() -> None:
    schedule = Schedule({}, {"net": {"all": "#-"}})

    def candidate(*psnrs: float) -> corrections.Candidate:
        return corrections.Candidate(schedule, torch.tensor(psnrs))

    plain = candidate(30, 31, 32, 33)
    assert plain.psnr == 31.5
    assert corrections.chosen({"schedule": plain, "few": candidate(30, 39, 39, 32)}) == "schedule"
    assert corrections.chosen({"schedule": plain, "most": candidate(29, 32, 33, 34)}) == "most"
    assert (
        corrections.chosen(
            {"schedule": plain, "a": candidate(31, 32, 33, 34), "b": candidate(31, 32, 34, 33)}
        )
        == "a"
    )


def test_hindsight_is_one_more_correction_that_can_be_left_out() -> None:
    pipe = FLUX.build()
    runs, hindsight_only = FullRuns(pipe, flux_calls(STEPS)), Corrections(rectify=False, respace=False)
    nothing = replace(hindsight_only, hindsight=False)
    schedule = frozen(pipe, FLUX.call(0, STEPS), UniformConfig(interval=2))
    assert list(corrections.candidates(runs, schedule, nothing)) == ["schedule"]
    tried = corrections.candidates(runs, schedule, hindsight_only)
    assert list(tried) == ["schedule", "schedule, hindsight"]
    plain, with_hindsight = (candidate.schedule for candidate in tried.values())
    assert not torch.equal(_render(pipe, with_hindsight), _render(pipe, plain))
    with accelerated(pipe, ReplayConfig(schedule=with_hindsight, hindsight=False)):
        switched_off = FLUX.render(pipe, 0, STEPS)
    assert torch.equal(switched_off, _render(pipe, plain))
    kept = calibrate_corrections(pipe, flux_calls(STEPS), schedule, hindsight_only)
    assert kept.producer["corrections"]["kept"] == corrections.chosen(tried)
    inside = frozen(pipe, FLUX.call(0, STEPS), UniformConfig(interval=2, site="block"))
    assert list(corrections.candidates(runs, inside, hindsight_only)) == ["schedule"]


def test_inside_a_denoiser_every_stream_is_corrected() -> None:
    pipe = FLUX.build()
    schedule = frozen(pipe, FLUX.call(0, STEPS), UniformConfig(interval=2, site="transformer_blocks.1"))
    repaired = corrections.rectified(pipe, flux_calls(STEPS), schedule)
    assert {
        "transformer.transformer_blocks.1/cond/gain",
        "transformer.transformer_blocks.1/cond/1/gain",
    } <= set(repaired.corrections)
    plain, first, both = (
        _render(
            pipe,
            corrections.with_corrections(schedule, {n: t for n, t in repaired.corrections.items() if has(n)}),
        )
        for has in (lambda n: False, lambda n: "/1/" not in n, lambda n: True)
    )
    assert not torch.equal(plain, first)
    assert not torch.equal(first, both)
    with pytest.raises(ScheduleError, match="whole denoisers: calibrate with respace=False"):
        calibrate_corrections(pipe, flux_calls(STEPS), schedule)


def _render(pipe: Any, schedule: Schedule) -> torch.Tensor:
    with accelerated(pipe, ReplayConfig(schedule=schedule)):
        return FLUX.render(pipe, 0, STEPS)


def test_a_schedule_that_rebuilds_the_unconditional_pass_is_not_corrected() -> None:
    schedule = Schedule({"net": Model("Net", "0")}, {"net": {"all": "#-"}, "net.guidance": {"all": "#-"}})
    with pytest.raises(ScheduleError, match="unconditional pass cannot be corrected"):
        corrections.rectified(None, flux_calls(STEPS), schedule)


def test_respaced_runs_use_their_own_noise_levels() -> None:
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
