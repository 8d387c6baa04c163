"""Error control with a budget of ticks: it computes as many as it may, where the output bends."""

from __future__ import annotations

import pytest
import torch

from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Step
from diffcache.schedulers.tick_budget import TickBudget, threshold_for_speedup


def run(num_ticks: int, count: int, errors: list[float], weights: list[float] | None = None) -> str:
    """The marks of a run; `errors` has, for each tick, the error of holding one tick further on."""
    budget, marks, last = TickBudget(num_ticks, count, tail=1, order=0, axis="tick"), "", [0]
    for tick in range(num_ticks):
        signal = [errors[last[0]] * (last[0] - last[1])] if tick > 1 else None
        forced = tick < 2 or tick == num_ticks - 1
        step = Step(tick, num_ticks, "0", weight=1.0 if weights is None else weights[tick])
        computes = forced or budget.decide(step, signal).computes
        if computes:
            budget.compared([Moment(past) for past in last], Moment(tick), torch.zeros(1))
            budget.computed([], [])
            last = [tick, *last]
        marks += "#" if computes else "-"
    return marks


@pytest.mark.parametrize("count", [4, 7, 12, 25, 40, 49, 50])
@pytest.mark.parametrize("error", [0.0, 1e-4, 0.01, 0.03, 1.0])
def test_all_ticks_of_a_budget_are_computed_however_the_output_bends(count: int, error: float) -> None:
    assert run(50, count, [error] * 50).count("#") == count


def test_more_ticks_are_computed_where_the_output_bends() -> None:
    marks = run(50, 25, [0.001] * 15 + [0.03] * 15 + [0.001] * 20)
    assert marks.count("#") == 25
    assert marks[15:30].count("#") > marks[2:17].count("#")


def test_ticks_are_only_computed_early_where_errors_matter() -> None:
    """Where errors matter less than on average, the rest of the run keeps its even share."""
    bends = [0.06] * 20 + [0.001] * 30
    matters, matters_less = (run(50, 25, bends, [weight] * 20 + [1.0] * 30) for weight in (1.0, 0.99))
    assert matters[:20].count("#") > 12
    assert matters_less[:20].count("#") <= 10


@pytest.mark.parametrize("count", [12, 16, 20, 25])
def test_no_gap_is_longer_than_even_gaps(count: int) -> None:
    """Even if no error is expected, no gap is a whole tick longer than even ones."""
    gaps = [len(gap) + 1 for gap in run(50, count, [0.0] * 50).split("#")[1:-1]]
    assert max(gaps) <= 50 / count + 1


def test_the_threshold_follows_from_the_ticks_that_are_left() -> None:
    budget = TickBudget(50, 17, tail=1, order=0, axis="tick")
    budget.compared([Moment(0)], Moment(1), torch.zeros(1))
    for _ in range(2):
        budget.computed([], [])
    budget.decide(Step(9, 50, "0"), [0.0])
    assert budget.threshold == pytest.approx(threshold_for_speedup(40 / 14))
    assert threshold_for_speedup(2) == 0.02
