"""Search: plans that are as good as every plan that there is, where all can be tried, and densities that keep what they must."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from diffcache.schedulers.ticks import spread
from diffcache.trajectory.process import Process
from diffcache.trajectory.response import Response
from diffcache.trajectory.result_error import ResultError, Trust
from diffcache.trajectory.search import KNOTS, moved, spread_anew, through, with_density

TICKS = 14
EVEN = spread(TICKS, 6)


def error_of(positions: np.ndarray) -> ResultError:
    distance = np.abs(np.subtract.outer(positions, positions))
    influence = np.tril(np.full((TICKS + 1, TICKS), -0.1), -1)
    response = Response(np.full((3, TICKS), 2.0))
    process = Process((1 + distance) * np.exp(-distance), positions)
    return ResultError(process, influence, np.ones(TICKS), response, 3.0, Trust(1e-3, 0.0))


LATE = error_of(np.linspace(0, 1, TICKS) ** 3)
"""Most of the way lies at the end."""


def test_the_density_is_nearly_as_good_as_every_plan_and_moves_come_closer() -> None:
    dense = spread_anew(LATE, EVEN, {0})
    close = moved(LATE, dense, {0}, together=3)
    best = min(LATE((0, *others)) for others in combinations(range(1, TICKS), len(EVEN) - 1))
    assert best <= LATE(close) <= LATE(dense) < 0.7 * LATE(EVEN)
    assert LATE(dense) < 1.5 * best
    assert LATE(close) < 1.1 * best


def test_neighbours_that_are_moved_together_find_better_plans() -> None:
    assert LATE(moved(LATE, EVEN, {0}, together=3)) < LATE(moved(LATE, EVEN, {0}))


def test_ticks_lie_close_where_velocities_change() -> None:
    early = error_of(1 - np.linspace(1, 0, TICKS) ** 3)
    assert np.mean(spread_anew(LATE, EVEN, {0})) > np.mean(spread_anew(early, EVEN, {0})) + 2


def test_without_logarithms_ticks_stay_where_they_are() -> None:
    assert with_density(np.zeros((1, KNOTS)), EVEN, {0}, TICKS).tolist() == [EVEN]


def test_ticks_are_as_many_times_closer() -> None:
    logs = np.log([[1.0, 1.0, 4.0, 4.0], [4.0, 4.0, 1.0, 1.0]])
    late, early = with_density(logs, spread(300, 60), {0}, 300)
    for plan, dense, sparse in (
        (late, slice(220, 300), slice(1, 80)),
        (early, slice(1, 80), slice(220, 300)),
    ):
        inside = [int(((plan >= part.start) & (plan < part.stop)).sum()) for part in (dense, sparse)]
        assert inside[0] / inside[1] == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize("forced", [{0}, {0, 1, 2}, {0, 12, 13}, {0, 1, 13}, {0, 7}, {0, 5, 8, 13}])
@pytest.mark.parametrize("log", [-40.0, 0.0, 40.0])
def test_forced_ticks_stay_and_all_differ(forced: set[int], log: float) -> None:
    start = sorted({*forced, 4, 6, 9})
    tilted = log * np.linspace(-1, 1, KNOTS)[None]
    for found in (*with_density(tilted, start, forced, TICKS).tolist(), moved(LATE, start, forced)):
        assert forced <= {*found}
        assert len(found) == len(start)
        assert all(one < other for one, other in pairwise([*found, TICKS]))


def test_a_plan_through_a_tick_has_its_nearest_tick_there() -> None:
    assert through(np.array([[0, 3, 6, 9], [0, 1, 2, 3]]), [7]).tolist() == [[0, 3, 7, 9], [0, 1, 2, 7]]
    assert through(np.array([[9, 10, 11], [1, 2, 3]]), {5, 8}).tolist() == [[5, 8, 11], [1, 5, 8]]
    assert through(np.array([[0, 3, 6, 9]]), []).tolist() == [[0, 3, 6, 9]]


def test_where_all_are_forced_nothing_moves() -> None:
    assert spread_anew(LATE, [0, 1, 2], {0, 1, 2}) == [0, 1, 2]
    assert moved(LATE, [0, 1, 2], {0, 1, 2}) == [0, 1, 2]
