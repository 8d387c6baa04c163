"""Local search over ticks: it finds the optimum of small problems within its number of trials."""

from itertools import combinations

import pytest
import torch

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.local import TickList, local_search

TICKS = 12


class Held:
    """Error of holding a curve between computed ticks, which counts how often it is asked for."""

    def __init__(self, seed: int) -> None:
        steps = torch.rand(TICKS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.curve = steps.square().cumsum(0)
        self.asked: list[TickList] = []

    def __call__(self, ticks: TickList) -> float:
        self.asked.append(ticks)
        heads = torch.tensor([max(head for head in ticks if head <= tick) for tick in range(TICKS)])
        return float((self.curve - self.curve[heads]).square().sum())


@pytest.mark.parametrize("seed", range(4))
def test_it_finds_what_trying_all_finds(seed: int) -> None:
    held = Held(seed)
    best = min(((0, *rest) for rest in combinations(range(1, TICKS), 4)), key=held)
    found = local_search([(0, 1, 2, 3, 4), (0, 2, 5, 7, 10)], TICKS, held, trials=80)
    assert found.ticks == best
    assert found.loss == held(best)


def test_it_tries_nothing_twice_and_no_more_than_it_may() -> None:
    held = Held(0)
    local_search([(0, 7, 8, 9), (9, 8, 7, 0)], TICKS, held, trials=12)
    assert len(held.asked) == len(set(held.asked)) == 12
    assert all(ticks[0] == 0 and len(ticks) == 4 for ticks in held.asked)


def test_it_continues_from_the_best_start_and_is_never_worse() -> None:
    held = Held(1)
    good, bad = (0, 3, 5, 8), (0, 9, 10, 11)
    assert held(good) < held(bad)
    for trials in (2, 3, 9):
        assert local_search([bad, good], TICKS, held, trials).loss <= held(good)
    assert local_search([bad, good], TICKS, held, 2).ticks == good


def test_it_ends_where_no_move_is_left() -> None:
    asked: list[TickList] = []
    found = local_search([(0, 1)], 4, lambda ticks: asked.append(ticks) or -ticks[1], trials=50)
    assert found == ((0, 3), -3)
    assert asked == [(0, 1), (0, 2), (0, 3)]


def test_short_moves_that_close_the_largest_gap_come_first() -> None:
    asked: list[TickList] = []
    local_search([(0, 2, 4, 9)], TICKS, lambda ticks: float(asked.append(ticks) or len(asked)), trials=3)
    assert asked == [(0, 2, 4, 9), (0, 2, 5, 9), (0, 2, 4, 8)]


@pytest.mark.parametrize(
    ("starts", "trials", "says"),
    [
        ([], 5, "at least one start"),
        ([(0, 1)], 0, "one trial"),
        ([(1, 2)], 5, "tick 0"),
        ([(0, 12)], 5, "tick 11"),
    ],
)
def test_starts_and_trials_out_of_range_are_refused(starts: list[TickList], trials: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        local_search(starts, TICKS, Held(0), trials)


def test_moves_that_have_not_failed_come_first() -> None:
    asked: list[TickList] = []

    def loss(ticks: TickList) -> float:
        asked.append(ticks)
        return -ticks.count(8)

    local_search([(0, 2, 4, 9)], TICKS, loss, trials=12)
    assert (0, 2, 5, 9) in asked  # failed
    assert (0, 2, 4, 8) in asked  # better, so it continues from there
    assert (0, 2, 5, 8) not in asked


def test_a_loss_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="loss: not a number"):
        local_search([(0, 1), (0, 2)], 4, lambda ticks: float("nan") if ticks == (0, 1) else 1.0, trials=4)
