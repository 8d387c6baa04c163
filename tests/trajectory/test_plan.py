"""Plans: as good as every plan that there is, where all can be tried."""

from functools import partial
from itertools import combinations

import numpy as np
import pytest

from diffcache.schedulers.ticks import spread
from diffcache.trajectory.plan import BEYOND, HELD, MOST_TICKS, NEAR, TRUSTS, UNSTABLE, moved, planned
from diffcache.trajectory.process import Process
from diffcache.trajectory.result_error import ResultError, Trust

TICKS = 12
LATE = np.linspace(0, 1, TICKS) ** 3
"""Most of the way lies at the end."""


def errors(trust: Trust, positions: np.ndarray = LATE) -> ResultError:
    distance = np.abs(np.subtract.outer(positions, positions))
    covariance = (1 + distance) * np.exp(-distance)
    return ResultError(Process(covariance, positions), np.full(TICKS, -0.1), 3.0, trust, 2.0)


def test_no_plan_is_better_where_all_are_tried() -> None:
    found = planned(errors, spread(TICKS, 5), forced=())
    error = errors(found.trust)
    best = min(error((0, *others)) for others in combinations(range(1, TICKS), 4))
    assert error(found.ticks) <= 1.02 * best
    assert error(found.ticks) < error(spread(TICKS, 5))


def test_ticks_are_computed_where_the_outputs_change() -> None:
    late = planned(errors, spread(TICKS, 6), forced=()).ticks
    early = planned(partial(errors, positions=1 - LATE[::-1]), spread(TICKS, 6), forced=()).ticks
    assert np.mean(late) > np.mean(early) + 0.5


def test_the_trust_is_the_first_that_is_nearly_the_best_for_the_plan() -> None:
    found = planned(errors, spread(TICKS, 5), forced=())
    expected = [errors(trust)(found.ticks) for trust in TRUSTS]
    assert found.expected == pytest.approx(errors(found.trust)(found.ticks) ** 0.5)
    assert found.trust == next(
        trust for trust, error in zip(TRUSTS, expected, strict=True) if error <= NEAR * min(expected)
    )


def test_evenness_leaves_ticks_where_they_are() -> None:
    even = spread(TICKS, 5)
    assert planned(errors, even, (), evenness=1.0).ticks == tuple(even)
    best = planned(errors, even, (), evenness=0.0).ticks
    halfway = planned(errors, even, (), evenness=0.5).ticks
    assert all(min(a, b) <= tick <= max(a, b) for a, b, tick in zip(even, best, halfway, strict=True))
    assert len(set(halfway)) == len(even)


def test_very_many_ticks_stay_where_they_are() -> None:
    start = list(range(0, 2 * MOST_TICKS + 2, 2))
    positions = np.linspace(0, 1, 2 * MOST_TICKS + 2)
    distance = np.abs(np.subtract.outer(positions, positions))

    def long(trust: Trust) -> ResultError:
        process = Process(np.exp(-distance), positions)
        return ResultError(process, np.full(len(positions), -1 / len(positions)), 3.0, trust, 2.0)

    assert planned(long, start, forced=()).ticks == tuple(start)


@pytest.mark.parametrize("forced", [(0, 1, 2), (0, 10, 11)])
def test_forced_ticks_stay_and_the_count_is_kept(forced: tuple[int, ...]) -> None:
    start = sorted({*forced, 5, 8})
    ticks = moved(errors(TRUSTS[0]), start, forced)
    assert {*forced} <= {*ticks}
    assert len(ticks) == len(set(ticks)) == len(start)
    assert ticks == sorted(ticks)


def test_a_run_that_its_covariance_says_nothing_of_is_held_at_even_ticks_and_not_corrected() -> None:
    far = partial(errors, positions=6 * LATE)
    even = spread(TICKS, 3)
    assert min(far(trust)(even, response=0.0) for trust in TRUSTS) > BEYOND**2
    found = planned(far, even, forced=())
    assert (found.ticks, found.trust, found.corrects) == (tuple(even), HELD, False)


def test_where_errors_would_feed_each_other_the_newest_is_held_at_even_ticks_and_corrected() -> None:
    even = spread(TICKS, 5)
    assert planned(errors, even, forced=()).trust != HELD
    assert min(errors(trust)(even, response=40.0) for trust in TRUSTS) > UNSTABLE**2
    found = planned(errors, even, forced=(), response=40.0)
    assert (found.ticks, found.trust, found.corrects) == (tuple(even), HELD, True)


def test_the_stronger_errors_come_back_the_less_extrapolation_gains_over_holding() -> None:
    even = spread(TICKS, 5)
    gains = [
        errors(HELD)(even, response) / errors(TRUSTS[0])(even, response) for response in (4.0, 8.0, 16.0)
    ]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1 > gains[-1]


def test_the_expected_error_is_for_the_response_of_the_model_and_not_the_one_that_is_guarded_against() -> (
    None
):
    found = planned(errors, spread(TICKS, 5), forced=(), evenness=1.0, response=8.0)
    assert found.expected == pytest.approx(errors(found.trust)(found.ticks) ** 0.5)
