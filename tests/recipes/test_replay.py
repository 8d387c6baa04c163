"""A schedule at another scale of guidance than it was made at is replayed, and its report says that the measured error does not hold."""

from __future__ import annotations

import pytest
from zoo.pipelines import CASES

from diffcache import Schedule, accelerate, report
from diffcache.reports.run_report import RunReport

SD, STEPS = CASES["StableDiffusionPipeline"], 10
MADE_AT = 3.0


def run(schedule: Schedule | None, guidance_scale: float, **options: bool) -> RunReport:
    """A run by a schedule, or by the method that one is made from."""
    pipe = SD.build()
    pipe = accelerate(pipe, speedup=2) if schedule is None else accelerate(pipe, schedule, **options)
    SD.render(pipe, 0, STEPS, guidance_scale=guidance_scale)
    return report(pipe)


def test_a_schedule_is_for_the_scale_of_guidance_that_it_was_made_at() -> None:
    schedule = run(None, MADE_AT).to_schedule()
    assert schedule.expected_error is not None
    same, other = run(schedule, MADE_AT), run(schedule, 7.0)
    assert other.computed_ticks == same.computed_ticks == schedule.computed_ticks
    assert same.expected_error == schedule.expected_error
    assert not any("guidance scale" in note for note in same.notes)
    assert other.expected_error is None
    assert any("made with a guidance scale of 3, and this run has 7" in note for note in other.notes)


@pytest.mark.parametrize("resample", [True, False])
def test_one_that_does_not_say_its_scale_is_replayed_as_it_is(resample: bool) -> None:
    schedule = run(None, MADE_AT).to_schedule()
    del schedule.predictor["guidance_scale"]  # type: ignore[attr-defined]
    told = run(schedule, 7.0, resample=resample)
    assert told.expected_error == schedule.expected_error
    assert not any("guidance scale" in note for note in told.notes)
