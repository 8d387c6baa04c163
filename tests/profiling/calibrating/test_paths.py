"""DPCache's and MeanCache's costs by hand, and their paths on a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.searches.flux_calls import FLUX, flux_calls

from diffcache import accelerate, report
from diffcache.profiling.calibrating.dpcache import calibrate_dpcache, costs_of
from diffcache.profiling.calibrating.ertacache import calibrate_ertacache
from diffcache.profiling.calibrating.magcache import calibrate_magcache
from diffcache.profiling.calibrating.meancache import calibrate_meancache, errors_of
from diffcache.profiling.recording.shares import TooLittle
from diffcache.schedulers.errors import ConfigError

STEPS = 8


def test_dpcaches_costs_are_sums_of_the_errors_of_its_forecasts() -> None:
    squares = torch.arange(10.0).square()[:, None].expand(-1, 3)
    costs = costs_of(squares, order=2)
    # From 2 and 1: differences 3 and 1, so 4 + 3d + 2 d^2/2: 8, 14, 22 for 9, 16, 25. Jumps are at most 3 of 10 ticks.
    assert costs[1, 2, 3:7].tolist() == [1, 3, 6, torch.inf]
    # From 3 and 1: differences 4 and 1, so the second is 1.5: 13.75 for 16
    assert costs[1, 3, 4] == 2.25
    assert (costs[0, 0, 1], costs[0, 1, 2], costs[1, 1, 2]) == (0, 0, 0)
    # After the end: 0.8 times the forecast 99 and 0.2 times the mean of 81, 64 and 49; forecast again as 99
    assert costs[8, 9, 10] == pytest.approx(99 - (0.8 * 99 + 0.2 * 194 / 3))
    allowed = costs.isfinite()
    assert not allowed[:, 5, 9].any()
    assert not allowed[0, 5].any()
    assert not allowed[0, 2].any()  # two differences at 0 would need the tick before the run


def test_dpcache_computes_the_first_ticks_and_a_path() -> None:
    pipe = FLUX.build()
    schedule = calibrate_dpcache(pipe, flux_calls(STEPS), 5 / STEPS)
    accelerate(pipe, schedule)
    FLUX.render(pipe, 0, STEPS)
    assert report(pipe).computed_ticks == [0, 1, 2, 4, 6]  # no jump is longer than two of eight ticks
    taylor = {"name": "taylor", "order": 2, "first": 1, "basis": "output"}
    described = {**schedule.predictor}
    assert described.pop("guidance_options") == {"guidance_scale": 3.5}
    assert described == {**taylor, "guidance_scale": 1.0}
    with pytest.raises(TooLittle, match=r"compute=0\.5 is too little here"):
        calibrate_dpcache(pipe, flux_calls(STEPS), 0.5)


CALIBRATIONS = {
    "dpcache": calibrate_dpcache,
    "ertacache": calibrate_ertacache,
    "magcache": calibrate_magcache,
    "meancache": calibrate_meancache,
}


@pytest.mark.parametrize("calibrate", CALIBRATIONS.values(), ids=CALIBRATIONS)
def test_no_calls_and_calls_that_differ_in_their_steps_are_refused(calibrate: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="give at least one"):
        calibrate(FLUX.build(), [])
    with pytest.raises(ConfigError, match="numbers of steps differ"):
        calibrate(FLUX.build(), [FLUX.call(0, 4), FLUX.call(1, 5)])


@pytest.mark.parametrize("calibrate", [calibrate_dpcache, calibrate_meancache])
@pytest.mark.parametrize("compute", [-1, 2, "0.5"])
def test_what_is_no_share_is_not_called_too_little(calibrate: Callable[..., Any], compute: Any) -> None:
    with pytest.raises(ConfigError, match="must be a share of the full run's work"):
        calibrate(FLUX.build(), flux_calls(STEPS, 1), compute)


def test_dpcache_refuses_runs_that_are_too_short_to_forecast_in() -> None:
    with pytest.raises(ConfigError, match="runs of 2 ticks are too short: take 3 steps"):
        calibrate_dpcache(FLUX.build(), [FLUX.call(0, 2)])


def test_meancaches_errors_are_those_of_average_velocities() -> None:
    levels, velocities = [1.0, 0.8, 0.5, 0.4], torch.tensor([[2.0], [5.0], [1.0]])
    hold, back_two = errors_of(velocities, levels)[:2]
    # held over 1 and 2: errors -3 and 1 over steps of -0.3 and -0.1; the jump from 0 goes 0.5, then 0.6
    assert hold[0, 1:].tolist() == pytest.approx([0, 0.9 / 0.5, 0.8 / 0.6])
    # from 1 with the slope since 0: 5.36 for 1, of 0.1 in 0.4
    assert back_two[1, 3] == pytest.approx(0.1 * 4.36 / 0.4)
    assert (hold[1, 2], hold[2, 3], back_two[2, 3]) == (0, 0, 0)
    assert torch.isinf(hold.tril()[1:, :].diagonal()).all()


def test_meancache_finds_a_plan_and_replays_it() -> None:
    pipe = FLUX.build()
    schedule = calibrate_meancache(pipe, flux_calls(STEPS), 0.5)
    accelerate(pipe, schedule)
    FLUX.render(pipe, 0, STEPS)
    assert len(report(pipe).computed_ticks) == 4
    assert schedule.predictor["name"] == "average velocity"
    assert schedule.predictor["levels"][-1] == 0
