"""ERTACache: which ticks it computes, along the full run and along its own reuse, and what its schedules replay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.harness import dressed
from support.searches.flux_calls import FLUX, flux_calls
from support.searches.recordings import curve_of
from zoo.pipelines import CASES

from diffcache import accelerate, report
from diffcache.profiling.calibrating import corrections
from diffcache.profiling.calibrating.corrections import Corrections
from diffcache.profiling.calibrating.ertacache import calibrate_ertacache, policy
from diffcache.profiling.recording.frozen import frozen
from diffcache.profiling.recording.record import record, record_closed_loop
from diffcache.profiling.recording.recording import Recording
from diffcache.recipes.schedule_fields import RESPACED
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.errors import ScheduleError

STEPS = 8


def test_a_tick_is_computed_once_it_is_too_far_from_the_last_computed_one() -> None:
    drift = torch.full((6, 6), torch.nan, dtype=torch.float64)
    for s in range(6):
        for g in range(s):
            drift[s, g] = 0.1 * (s - g)
    recording = Recording({}, None, None, {("net", "0"): curve_of(drift)})
    assert policy(recording, 1.0) == [0, 1, 2, 3, 4, 5]
    assert policy(recording, 0.7) == [0, 2, 4, 5]
    assert policy(recording, 0.5) == [0, 3, 5]


def test_with_two_denoisers_distances_are_measured_within_each() -> None:
    first, second = torch.full((2, 6, 6), torch.nan, dtype=torch.float64)
    for s in range(6):
        for g in range(s):
            own = first if s < 3 else second
            own[s, g] = 0.1 * (s - g) if (s < 3) == (g < 3) else torch.nan
    curves = {("high", "0"): curve_of(first), ("low", "0"): curve_of(second)}
    recording = Recording({}, None, None, curves)
    assert policy(recording, 1.0) == [0, 1, 2, 3, 4, 5]
    assert policy(recording, 0.7) == [0, 2, 3, 5]


def test_the_closed_loop_is_measured_along_the_reuse() -> None:
    pipe = FLUX.build()
    start = frozen(pipe, FLUX.call(0, STEPS), UniformConfig(interval=3))
    open_loop, closed = (
        record(pipe, flux_calls(STEPS, 1)),
        record_closed_loop(pipe, flux_calls(STEPS, 1), start),
    )
    assert closed.num_ticks == STEPS
    computed = [tick for tick, mark in enumerate(start.table["transformer"]["cond"]) if mark == "#"]
    assert computed[:3] == [0, 3, 6]
    change, along = open_loop.leading.drift, closed.leading.drift
    assert torch.equal(along[1, 0], change[1, 0])  # the first reuse is yet to be felt
    assert not torch.equal(along[2, 1], change[2, 1])
    schedule = calibrate_ertacache(pipe, flux_calls(STEPS, 1), 0.5, Corrections(closed=True, respace=False))
    settled = record_closed_loop(pipe, flux_calls(STEPS, 1), corrections.with_corrections(schedule, {}))
    assert [i for i, mark in enumerate(schedule.table["transformer"]["all"]) if mark == "#"] == policy(
        settled, 0.5
    )


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
        calibrate_ertacache(pipe, [call], corrections=Corrections(rectify=False))
    assert calibrate_ertacache(pipe, [call], corrections=Corrections(respace=False)).measured


def test_calibrated_schedules_replay_and_their_corrections_can_be_switched_off(tmp_path: Path) -> None:
    pipe = FLUX.build()
    schedule = calibrate_ertacache(pipe, flux_calls(STEPS), compute=0.5)
    assert schedule.decisions.sum() <= STEPS / 2
    folder = schedule.save_pretrained(tmp_path)
    accelerate(pipe, "ertacache", calibration=str(folder))
    with_repair = FLUX.render(pipe, 0, STEPS)
    accelerate(pipe, schedule)
    assert torch.equal(FLUX.render(pipe, 0, STEPS), with_repair)
    accelerate(pipe, "ertacache", calibration=str(folder), rectify=False, respace=False)
    assert FLUX.render(pipe, 0, STEPS).isfinite().all()


def test_a_run_with_noise_levels_of_its_own_can_be_frozen() -> None:
    pipe = FLUX.build()
    kept = Corrections(hindsight=False)
    schedule = calibrate_ertacache(pipe, flux_calls(STEPS), compute=0.5, corrections=kept)
    assert RESPACED in schedule.corrections
    accelerate(pipe, schedule)
    picture = FLUX.render(pipe, 0, STEPS)
    again = report(pipe).to_schedule()
    assert again.sigmas == schedule.sigmas
    assert {*again.corrections} == {*schedule.corrections}
    accelerate(pipe, again)
    assert torch.equal(FLUX.render(pipe, 0, STEPS), picture)
