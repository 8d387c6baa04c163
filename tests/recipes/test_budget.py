"""A speed-up is kept: never more compute than asked for."""

from __future__ import annotations

import pytest
import torch

from diffcache.config import RunFacts
from diffcache.recipes.budget import BudgetConfig, allowed
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Step
from diffcache.schedulers.tick_budget import threshold_for_speedup
from diffcache.schedulers.ticks import spread


@pytest.mark.parametrize("speedup", [1, 1.3, 1.5, 2, 2.5, 3, 4, 10, 100])
@pytest.mark.parametrize("ticks", [1, 2, 5, 7, 20, 28, 50, 100])
def test_a_speedup_allows_its_share_of_the_ticks(ticks: int, speedup: float) -> None:
    assert allowed(ticks, speedup) == max(int(ticks / speedup + 1e-9), 1)


def test_in_a_run_of_unknown_length_the_threshold_is_constant() -> None:
    assert BudgetConfig(speedup=4).scheduler(RunFacts("Net")).threshold == threshold_for_speedup(4)


def test_denoisers_that_share_a_run_spread_their_ticks_evenly() -> None:
    assert spread(50, 12, 3) == [0, 1, 2, 7, 12, 18, 23, 28, 33, 39, 44, 49]
    scheduler = BudgetConfig(speedup=50 / 12).scheduler(RunFacts("Net", experts=2, num_ticks=50))
    scheduler.compared([Moment(0)], Moment(1), torch.zeros(3))
    due = [tick for tick in range(3, 50) if scheduler.decide(Step(tick, 50, "0"), [0.0] * 3).computes]
    assert due == [tick for tick in spread(50, 11, 1) if tick >= 3]
