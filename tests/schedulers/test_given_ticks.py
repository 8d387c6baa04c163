"""Given ticks are computed, and no others; the others are reused by the order that fits."""

from __future__ import annotations

import pytest
import torch

from diffcache.schedulers.given_ticks import GivenTicks, threshold_for_speedup
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Decision, Step


def test_only_given_ticks_are_computed_whatever_errors_are_measured() -> None:
    scheduler = GivenTicks([0, 3, 9], order=1)
    assert scheduler.decide(Step(0, 10, "0"), None) is Decision.COMPUTE
    scheduler.compared([Moment(1), Moment(0)], Moment(2), torch.zeros(2))
    due = [tick for tick in range(1, 10) if scheduler.decide(Step(tick, 10, "0"), [9.0, 9.0]).computes]
    assert due == [3, 9]


def test_others_are_reused_by_the_least_expected_error() -> None:
    scheduler = GivenTicks([0, 1, 2], order=1, axis="tick")
    scheduler.compared([Moment(1), Moment(0)], Moment(2), torch.zeros(2))
    assert scheduler.decide(Step(3, 10, "0"), [0.3, 0.01]) is Decision.HOLD
    assert scheduler.decide(Step(3, 10, "0"), [0.001, 0.1]) is Decision.PREDICT


@pytest.mark.parametrize(("speedup", "threshold"), [(2, 0.02), (4, 0.16)])
def test_the_threshold_grows_with_the_speed_up(speedup: float, threshold: float) -> None:
    assert threshold_for_speedup(speedup) == pytest.approx(threshold)
