"""Plans: as good as every plan that there is, where all can be tried."""

from functools import partial
from itertools import combinations

import numpy as np
import pytest

from diffcache.schedulers.ticks import spread
from diffcache.trajectory import plan
from diffcache.trajectory.plan import BEYOND, CLEARLY, FEW, HELD, MOST_TICKS, NEAR, TRUSTS, moved, planned
from diffcache.trajectory.process import Process
from diffcache.trajectory.result_error import ResultError, Trust

TICKS = 12
LATE = np.linspace(0, 1, TICKS) ** 3
"""Most of the way lies at the end."""
ALIKE = np.ones(TICKS)


def errors(
    trust: Trust, corrects: bool = True, *, positions: np.ndarray = LATE, sensitivity: np.ndarray = ALIKE
) -> ResultError:
    distance = np.abs(np.subtract.outer(positions, positions))
    covariance = (1 + distance) * np.exp(-distance)
    ratio = 3.0 if corrects else 0.0
    return ResultError(Process(covariance, positions), np.full(TICKS, -0.1), sensitivity, ratio, trust, 2.0)


@pytest.fixture
def few_are_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many ticks as there can be in runs so short that all plans can be tried."""
    monkeypatch.setattr(plan, "FEW", 2)


@pytest.mark.usefixtures("few_are_moved")
def test_no_plan_is_better_where_all_are_tried() -> None:
    found = planned(errors, spread(TICKS, 5), forced=())
    error = errors(found.trust)
    best = min(error((0, *others)) for others in combinations(range(1, TICKS), 4))
    assert error(found.ticks) <= 1.02 * best
    assert error(found.ticks) < error(spread(TICKS, 5))


@pytest.mark.usefixtures("few_are_moved")
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


@pytest.mark.usefixtures("few_are_moved")
def test_ticks_are_computed_where_the_result_feels_errors() -> None:
    linear = np.linspace(0, 0.3, TICKS)
    late = planned(partial(errors, positions=linear), spread(TICKS, 6), forced=()).ticks
    felt = partial(errors, positions=linear, sensitivity=np.geomspace(10, 0.1, TICKS))
    assert np.mean(planned(felt, spread(TICKS, 6), forced=()).ticks) < np.mean(late) - 0.5


def test_very_many_ticks_stay_where_they_are() -> None:
    start = list(range(0, 2 * MOST_TICKS + 2, 2))
    positions = np.linspace(0, 1, 2 * MOST_TICKS + 2)
    distance = np.abs(np.subtract.outer(positions, positions))

    def long(trust: Trust, corrects: bool) -> ResultError:
        process = Process(np.exp(-distance), positions)
        size = len(positions)
        return ResultError(process, np.full(size, -1 / size), np.ones(size), 3.0, trust, 2.0)

    assert planned(long, start, forced=()).ticks == tuple(start)


def test_few_ticks_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    even = spread(TICKS, 6)
    assert len(even) < FEW
    assert planned(errors, even, forced=()).ticks == tuple(even)
    monkeypatch.setattr(plan, "FEW", len(even))
    assert planned(errors, even, forced=()).ticks != tuple(even)


@pytest.mark.parametrize("forced", [(0, 1, 2), (0, 10, 11)])
def test_forced_ticks_stay_and_the_count_is_kept(forced: tuple[int, ...]) -> None:
    start = sorted({*forced, 5, 8})
    ticks = moved(errors(TRUSTS[0]), start, forced)
    assert {*forced} <= {*ticks}
    assert len(ticks) == len(set(ticks)) == len(start)
    assert ticks == sorted(ticks)


def test_where_little_is_foretold_the_newest_is_held_as_in_fewer_steps_unless_that_is_clearly_worse() -> None:
    far, even = partial(errors, positions=6 * LATE), spread(TICKS, 3)
    foretold = min(far(trust)(moved(far(trust), even, (0,)), response=0.0) for trust in TRUSTS)
    assert foretold > BEYOND**2
    found = planned(far, even, forced=(), response=40.0)
    assert (found.ticks, found.trust, found.corrects) == (tuple(even), HELD, False)
    clear = planned(far, even, forced=(), response=0.0)
    assert clear.corrects
    assert CLEARLY * far(clear.trust)(clear.ticks, response=0.0) < far(HELD, False)(even, response=0.0)


def test_where_errors_come_back_strongly_the_newest_is_held_and_corrected() -> None:
    even = spread(TICKS, 8)
    assert planned(errors, even, forced=()).trust != HELD
    found = planned(errors, even, forced=(), response=160.0)
    assert (found.trust, found.corrects) == (HELD, True)


def test_the_stronger_errors_come_back_the_less_extrapolation_gains_over_holding() -> None:
    even = spread(TICKS, 5)
    gains = [
        errors(HELD)(even, response) / errors(TRUSTS[0])(even, response) for response in (4.0, 8.0, 16.0)
    ]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1 > gains[-1]


@pytest.mark.parametrize(("guarded", "expected"), [(None, 2.0), (3.0, 2.0), (8.0, 4.0)])
def test_errors_are_expected_for_the_usual_response_or_half_of_the_guarded_one(
    guarded: float | None, expected: float
) -> None:
    found = planned(errors, spread(TICKS, 5), forced=(), response=guarded)
    assert found.expected == pytest.approx(errors(found.trust)(found.ticks, expected) ** 0.5)
