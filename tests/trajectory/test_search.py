"""Search: plans that are as good as every plan that there is, where all can be tried, and gaps that keep what they must."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from diffcache.schedulers.ticks import spread
from diffcache.trajectory.error_model import Caution, ErrorModel
from diffcache.trajectory.process import Process
from diffcache.trajectory.response import Response
from diffcache.trajectory.search import DEGREE, in_place, moved, neighbours, spread_anew, through, with_gaps

TICKS = 14
EVEN = spread(TICKS, 6)


def error_of(positions: np.ndarray) -> ErrorModel:
    distance = np.abs(np.subtract.outer(positions, positions))
    influence = np.tril(np.full((TICKS + 1, TICKS), -0.1), -1)
    response = Response(np.outer([2.0, 0.0], np.ones(TICKS)))
    process = Process((1 + distance) * np.exp(-distance), positions)
    return ErrorModel(process, influence, np.ones(TICKS), response, 3.0, Caution(1e-3, 0.0))


LATE = error_of(np.linspace(0, 1, TICKS) ** 3)
"""Most of the way lies at the end."""
BURSTS = error_of(np.cumsum([0.0, *np.where(np.isin(np.arange(1, TICKS), [1, 2, 12]), 0.5, 0.02)]))
"""All of the way lies at three ticks, which gaps that change smoothly cannot follow."""


def test_smooth_gaps_are_nearly_as_good_as_every_plan_and_moves_come_closer() -> None:
    dense = spread_anew(LATE, EVEN, LATE(EVEN), {0})
    close = moved(LATE, dense, {0}, together=3)
    best = min(LATE((0, *others)) for others in combinations(range(1, TICKS), len(EVEN) - 1))
    assert best <= LATE(close) <= LATE(dense) < 0.7 * LATE(EVEN)
    assert LATE(dense) < 1.5 * best
    assert LATE(close) < 1.1 * best


def test_neighbours_that_are_moved_together_find_better_plans() -> None:
    assert LATE(moved(LATE, EVEN, {0}, together=3)) < LATE(moved(LATE, EVEN, {0}))


def test_ticks_lie_close_where_velocities_change() -> None:
    early = error_of(1 - np.linspace(1, 0, TICKS) ** 3)
    assert (
        np.mean(spread_anew(LATE, EVEN, LATE(EVEN), {0}))
        > np.mean(spread_anew(early, EVEN, early(EVEN), {0})) + 2
    )


def test_gaps_change_as_the_polynomials_say() -> None:
    line, parabola = with_gaps(np.array([[0.7, 0, 0], [0, -1.0, 0]]), spread(400, 60), {0}, 400)
    for plan, log in (
        (line, lambda x: 0.7 * x),
        (parabola, lambda x: (1 - 3 * x**2) / 2),
    ):
        gaps = np.diff(plan, append=400)
        wanted = np.exp([log(x) for x in np.linspace(-1, 1, 60)])
        assert gaps == pytest.approx(400 * wanted / wanted.sum(), abs=1)


@pytest.mark.parametrize(("tilt", "first"), [(0.05, 2), (-0.05, 3)])
def test_equal_gaps_are_neighbours(tilt: float, first: int) -> None:
    (plan,) = with_gaps(np.array([[tilt, 0, 0]]), spread(50, 20), {0}, 50)
    gaps = np.diff(plan, append=50).tolist()
    assert {*gaps} == {2, 3}
    assert sorted(gaps, reverse=first == 3) == gaps


def test_rounding_keeps_the_sum_and_no_gap_is_empty() -> None:
    gaps = np.array([[1.5, 1.5, 1.5, 1.5], [1.0, 1.0, 1.0, 3.0], [2.4, 1.2, 1.2, 1.2]])
    assert neighbours(gaps).tolist() == [[2, 2, 1, 1], [1, 1, 1, 3], [3, 1, 1, 1]]
    assert in_place(gaps).tolist() == [[2, 1, 2, 1], [1, 1, 1, 3], [2, 2, 1, 1]]
    nearly = np.array([[0.5 - 1e-15, 1, 1, 1.5 + 1e-15]]) + np.array([[1, 0, 0, 0]])
    assert in_place(nearly).tolist() == [[2, 1, 1, 1]]
    assert neighbours(np.array([[2 - 1e-15, 1 - 1e-15, 1, 1 + 2e-15]])).tolist() == [[2, 1, 1, 1]]


def test_a_plan_is_kept_where_none_is_expected_to_be_better() -> None:
    smooth = spread_anew(BURSTS, EVEN, BURSTS(EVEN), {0})
    best = moved(BURSTS, smooth, {0}, together=3)
    assert best != smooth
    assert spread_anew(BURSTS, best, BURSTS(best), {0}) == best


@pytest.mark.parametrize("forced", [{0}, {0, 1, 2}, {0, 12, 13}, {0, 1, 13}, {0, 7}, {0, 5, 8, 13}])
@pytest.mark.parametrize("log", [-40.0, 0.0, 40.0])
def test_forced_ticks_stay_and_all_differ(forced: set[int], log: float) -> None:
    start = sorted({*forced, 4, 6, 9})
    tilted = log * np.eye(DEGREE)[:1]
    for found in (*with_gaps(tilted, start, forced, TICKS).tolist(), moved(LATE, start, forced)):
        assert forced <= {*found}
        assert len(found) == len(start)
        assert all(one < other for one, other in pairwise([*found, TICKS]))


def test_a_plan_through_a_tick_has_its_nearest_tick_there() -> None:
    assert through(np.array([[0, 3, 6, 9], [0, 1, 2, 3]]), [7]).tolist() == [[0, 3, 7, 9], [0, 1, 2, 7]]
    assert through(np.array([[9, 10, 11], [1, 2, 3]]), {5, 8}).tolist() == [[5, 8, 11], [1, 5, 8]]
    assert through(np.array([[0, 3, 6, 9]]), []).tolist() == [[0, 3, 6, 9]]


def test_where_all_are_forced_nothing_moves() -> None:
    assert spread_anew(LATE, [0, 1, 2], LATE([0, 1, 2]), {0, 1, 2}) == [0, 1, 2]
    assert moved(LATE, [0, 1, 2], {0, 1, 2}) == [0, 1, 2]
