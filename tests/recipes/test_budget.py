"""A budget is kept: never more compute than asked for, and never fewer ticks than it allows."""

import pytest
import torch

from diffcache.config import RunFacts
from diffcache.recipes.budget import BudgetConfig, allowed, spread
from diffcache.schedulers.allowance import Allowance, threshold_of
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Step


@pytest.mark.parametrize("speedup", [1, 1.3, 1.5, 2, 2.5, 3, 4, 10, 100])
@pytest.mark.parametrize("ticks", [1, 2, 5, 7, 20, 28, 50, 100])
def test_the_ticks_that_a_budget_allows(ticks: int, speedup: float) -> None:
    assert allowed(ticks, speedup) == max(int(ticks / speedup + 1e-9), 1)


def walked(num_ticks: int, count: int, errors: list[float], weights: list[float] | None = None) -> str:
    """A run whose outputs bend as `errors` say: at each tick, what holding would miss one tick further on."""
    allowance, marks, last = Allowance(num_ticks, count, tail=1, order=0, axis="tick"), "", [0]
    for tick in range(num_ticks):
        signal = [errors[last[0]] * (last[0] - last[1])] if tick > 1 else None
        forced = tick < 2 or tick == num_ticks - 1
        step = Step(tick, num_ticks, "0", weight=1.0 if weights is None else weights[tick])
        computes = forced or allowance.decide(step, signal).computes
        if computes:
            allowance.compared([Moment(past) for past in last], Moment(tick), torch.zeros(1))
            allowance.computed([], [])
            last = [tick, *last]
        marks += "#" if computes else "-"
    return marks


@pytest.mark.parametrize("count", [4, 7, 12, 25, 40, 49, 50])
@pytest.mark.parametrize("error", [0.0, 1e-4, 0.01, 0.03, 1.0])
def test_a_budget_is_spent_to_the_last_tick_however_the_output_bends(count: int, error: float) -> None:
    assert walked(50, count, [error] * 50).count("#") == count


def test_it_is_spent_where_the_output_bends() -> None:
    marks = walked(50, 25, [0.001] * 15 + [0.03] * 15 + [0.001] * 20)
    assert marks.count("#") == 25
    assert marks[15:30].count("#") > marks[2:17].count("#")


def test_and_where_errors_matter() -> None:
    """A stretch that bends as much may take from those after it only if errors there matter as much as on average."""
    bends = [0.06] * 20 + [0.001] * 30
    matters, matters_less = (walked(50, 25, bends, [weight] * 20 + [1.0] * 30) for weight in (1.0, 0.99))
    assert matters[:20].count("#") > 12
    assert matters_less[:20].count("#") <= 10


@pytest.mark.parametrize("count", [12, 16, 20, 25])
def test_nothing_is_saved_for_later(count: int) -> None:
    """However little seems to be lost, no gap is a whole tick longer than even ones."""
    gaps = [len(gap) + 1 for gap in walked(50, count, [0.0] * 50).split("#")[1:-1]]
    assert max(gaps) <= 50 / count + 1


def test_the_threshold_follows_from_what_is_left() -> None:
    allowance = Allowance(50, 17, tail=1, order=0, axis="tick")
    allowance.compared([Moment(0)], Moment(1), torch.zeros(1))
    for _ in range(2):
        allowance.computed([], [])
    allowance.decide(Step(9, 50, "0"), [0.0])
    assert allowance.threshold == pytest.approx(threshold_of(40 / 14))
    assert threshold_of(2) == 0.02


def test_where_the_length_is_unknown_the_threshold_stands() -> None:
    assert BudgetConfig(speedup=4).scheduler(RunFacts("Net")).threshold == threshold_of(4)


@pytest.mark.parametrize("ticks", [5, 7, 20, 28, 50, 100])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_evenly_spread_ticks_are_as_many(ticks: int, count: int) -> None:
    placed = spread(ticks, count, max(min(3, count - 1), 1))
    assert len(set(placed)) == len(placed) == count
    assert placed == sorted(placed)
    assert placed[0] == 0
    assert placed[-1] == (ticks - 1 if count > 1 else 0)


def test_denoisers_that_share_a_run_spread_their_ticks_evenly() -> None:
    assert spread(50, 12, 3) == [0, 1, 2, 7, 12, 18, 23, 28, 33, 39, 44, 49]
    scheduler = BudgetConfig(speedup=50 / 12).scheduler(RunFacts("Net", experts=2, num_ticks=50))
    scheduler.compared([Moment(0)], Moment(1), torch.zeros(3))
    due = [tick for tick in range(3, 50) if scheduler.decide(Step(tick, 50, "0"), [0.0] * 3).computes]
    assert due == [tick for tick in spread(50, 11, 1) if tick >= 3]
