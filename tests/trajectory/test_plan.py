"""Plans: as good as every plan that there is, where all can be tried."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import combinations

import numpy as np
import pytest

from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.ticks import spread
from diffcache.trajectory import plan
from diffcache.trajectory.error_model import Caution, ErrorModel
from diffcache.trajectory.gaussian import conditional_weights
from diffcache.trajectory.plan import (
    CAUTIONS,
    EQUALLY_WELL,
    FEWEST_MOVED,
    HELD,
    HOPELESS,
    NEAR,
    Start,
    TrajectoryPlan,
)
from diffcache.trajectory.process import Process
from diffcache.trajectory.response import Response

TICKS = 12
LATE = np.linspace(0, 1, TICKS) ** 3
"""Most of the way lies at the end."""
BURSTS = np.cumsum([0.0, *np.where(np.isin(np.arange(1, TICKS), [1, 6, 11]), 0.25, 0.005)])
"""All of the way lies at three ticks, which gaps that change smoothly cannot follow."""
LINEAR = np.linspace(0, 1, TICKS)
ALIKE = np.ones(TICKS)


def process(positions: np.ndarray) -> Process:
    distance = np.abs(np.subtract.outer(positions, positions))
    return Process((1 + distance) * np.exp(-distance), positions)


def errors(
    caution: Caution, corrects: bool = True, *, positions: np.ndarray = LATE, answers: np.ndarray = 2 * ALIKE
) -> ErrorModel:
    ratio = 3.0 if corrects else 0.0
    response = Response(np.stack([answers, 0 * answers]))
    influence = np.tril(np.full((TICKS + 1, TICKS), -0.1), -1)
    return ErrorModel(process(positions), influence, ALIKE, response, ratio, caution)


def planned(
    errors: Callable[..., ErrorModel], even: Sequence[int], forced: Collection[int], is_own: bool = False
) -> TrajectoryPlan:
    """The plan from one start."""
    return plan.planned(errors, [Start(even, forced)], is_own=is_own)


@pytest.fixture
def any_is_reliable(monkeypatch: pytest.MonkeyPatch) -> None:
    """In runs so short that all plans can be tried, errors are large."""
    monkeypatch.setattr(plan, "RELIABLE", np.inf)


@pytest.mark.usefixtures("any_is_reliable")
def test_no_plan_is_better_where_all_are_tried() -> None:
    even = spread(TICKS, 5)
    found = planned(errors, even, forced=(), is_own=True)
    error = errors(found.caution)
    best = min(error((0, *others)) for others in combinations(range(1, TICKS), 4))
    assert error(found.ticks) <= 1.009 * best
    assert error(found.ticks) < error(even)


@pytest.mark.usefixtures("any_is_reliable")
@pytest.mark.parametrize(("positions", "leaves"), [(LATE, False), (LINEAR, False), (1 - LATE[::-1], True)])
@pytest.mark.parametrize("count", [5, 9])
def test_the_last_tick_is_left_out_where_that_is_better_by_more_than_a_little(
    positions: np.ndarray, leaves: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = partial(errors, positions=positions)
    with_last = Start(spread(TICKS, count), {0, TICKS - 1})
    starts = [with_last, Start(spread(TICKS, count, compute_last=False), {0})]
    found = plan.planned(at, starts)
    assert found == planned(at, *starts[leaves])
    assert plan.planned(at, [with_last]) == planned(at, *with_last)
    assert (found.ticks[-1] < TICKS - 1) == leaves
    monkeypatch.setattr(plan, "NEAR", 6.0)
    assert plan.planned(at, starts).ticks[-1] == TICKS - 1


@pytest.mark.usefixtures("any_is_reliable")
def test_ticks_are_computed_where_the_outputs_change() -> None:
    late = planned(errors, spread(TICKS, 6), forced=()).ticks
    early = planned(partial(errors, positions=1 - LATE[::-1]), spread(TICKS, 6), forced=()).ticks
    assert np.mean(late) > np.mean(early) + 0.5


@pytest.mark.parametrize("count", [4, 5, 8, 11])
def test_the_trust_is_the_first_that_is_nearly_the_best_for_the_plan(count: int) -> None:
    found = planned(errors, spread(TICKS, count), forced=())
    expected = [errors(caution)(found.ticks) for caution in CAUTIONS]
    assert found.expected == pytest.approx(errors(found.caution).likely(found.ticks))
    most = min(expected) + EQUALLY_WELL * min(expected) ** 2
    assert found.caution == next(
        caution for caution, error in zip(CAUTIONS, expected, strict=True) if error <= most
    )


def test_a_small_error_is_worth_steeper_weights_than_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both by the same factor below that of the first caution."""
    far = partial(errors, positions=6 * LATE)

    def chosen(size: float, *, is_own: bool = False) -> Caution:
        monkeypatch.setattr(
            plan, "with_each", lambda errors, ticks: [1.02 * size, *[size] * (len(errors) - 1)]
        )
        return planned(far, spread(TICKS, 3), forced=(), is_own=is_own).caution

    assert [chosen(0.01), chosen(0.1)] == [CAUTIONS[1], CAUTIONS[0]]
    assert chosen(0.01, is_own=True) == CAUTIONS[0]


@pytest.mark.usefixtures("any_is_reliable")
def test_nothing_is_held_where_nothing_is_corrected() -> None:
    def uncorrected(caution: Caution, corrects: bool = True) -> ErrorModel:
        return errors(caution, corrects=False, positions=4 * LINEAR, answers=12 - 8 * LINEAR)

    even = spread(TICKS, 5)
    assert min(CAUTIONS, key=lambda caution: uncorrected(caution)(even)) == HELD
    found = planned(uncorrected, even, forced=())
    assert found.caution != HELD
    assert found.expected < HOPELESS


@pytest.mark.usefixtures("any_is_reliable")
def test_holding_does_not_win_where_the_covariance_knows_more() -> None:
    assert planned(errors, spread(TICKS, 8), forced=()).caution != HELD


@pytest.mark.usefixtures("any_is_reliable")
def test_more_ticks_are_computed_early_if_early_errors_grow() -> None:
    linear = 0.3 * LINEAR
    late = planned(partial(errors, positions=linear), spread(TICKS, 6), forced=()).ticks
    growing = partial(errors, positions=linear, answers=np.linspace(-6, 2, TICKS))
    assert np.mean(planned(growing, spread(TICKS, 6), forced=()).ticks) < np.mean(late) - 0.4


def test_a_covariance_that_foretells_nothing_is_refused() -> None:
    with pytest.raises(ScheduleError, match="no error can be expected with this covariance and response"):
        planned(partial(errors, answers=np.full(TICKS, 1e300)), spread(TICKS, 6), forced=())


def test_single_ticks_are_moved_where_that_is_asked_for_and_forced_ones_are_not() -> None:
    forced = (0, 1, 11)
    start = sorted({*spread(TICKS, 7), *forced})
    bursts = partial(errors, positions=BURSTS)
    dense, close = (planned(bursts, start, forced, is_own) for is_own in (False, True))
    assert close.expected < dense.expected
    for found in (dense, close):
        assert {*forced} <= {*found.ticks}
        assert len(found.ticks) == len(start)


@pytest.mark.usefixtures("any_is_reliable")
def test_the_better_of_the_moves_from_two_plans_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    bursts, even, starts = partial(errors, positions=BURSTS), spread(TICKS, 5), []

    def none_but_the_last(error: ErrorModel, start: list[int], forced: set[int], together: int) -> list[int]:
        starts.append(start)
        return best if len(starts) == 2 else start

    best = list(planned(bursts, even, forced=(), is_own=True).ticks)
    monkeypatch.setattr(plan, "moved", none_but_the_last)
    found = planned(bursts, even, forced=(), is_own=True)
    first = bursts(found.caution)
    assert len(starts) == 2
    assert list(found.ticks) == best
    assert first(best) < min(map(first, starts))


@pytest.mark.parametrize("longest", [TICKS - 1, TICKS])
def test_in_long_runs_single_ticks_are_not_moved(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "RELIABLE", np.inf)
    even, bursts = spread(TICKS, 5), partial(errors, positions=BURSTS)
    dense = planned(bursts, even, forced=()).ticks
    monkeypatch.setattr(plan, "LONGEST_MOVED", longest)
    assert (planned(bursts, even, forced=(), is_own=True).ticks == dense) is (longest < TICKS)


@pytest.mark.parametrize("longest", [TICKS - 1, TICKS])
def test_in_long_runs_ticks_stay_where_they_are(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    even = spread(TICKS, 8)
    monkeypatch.setattr(plan, "LONGEST", longest)
    found = planned(errors, even, forced=())
    assert (found.ticks == tuple(even)) is (longest < TICKS)
    assert (found.caution == plan.FOR_LONG_RUNS) is (longest < TICKS)


@pytest.mark.usefixtures("any_is_reliable")
def test_ticks_stay_where_they_are_if_moved_the_error_would_still_be_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    even = spread(TICKS, 5)
    found = planned(errors, even, forced=())
    assert found.ticks != tuple(even)
    error = errors(found.caution)(found.ticks)
    monkeypatch.setattr(plan, "RELIABLE", 1.05 * error)
    assert planned(errors, even, forced=()).ticks == found.ticks
    monkeypatch.setattr(plan, "RELIABLE", 0.95 * error)
    assert planned(errors, even, forced=()).ticks == tuple(even)


@pytest.mark.usefixtures("any_is_reliable")
@pytest.mark.parametrize("count", [FEWEST_MOVED - 1, FEWEST_MOVED])
def test_few_ticks_stay_where_they_are(count: int) -> None:
    even = spread(TICKS, count)
    assert (planned(errors, even, forced=()).ticks == tuple(even)) is (count < FEWEST_MOVED)


@pytest.mark.usefixtures("any_is_reliable")
def test_few_ticks_are_moved_where_that_helps_much(monkeypatch: pytest.MonkeyPatch) -> None:
    even = spread(TICKS, FEWEST_MOVED - 1)
    monkeypatch.setattr(plan, "MUCH", 1.0)
    found = planned(errors, even, forced=())
    before, after = (min(errors(caution)(ticks) for caution in CAUTIONS) for ticks in (even, found.ticks))
    assert after < before
    monkeypatch.setattr(plan, "MUCH", 0.95 * before / after)
    assert planned(errors, even, forced=()).ticks == found.ticks
    monkeypatch.setattr(plan, "MUCH", 1.05 * before / after)
    assert planned(errors, even, forced=()).ticks == tuple(even)


@pytest.mark.parametrize("reliable", [0.0, np.inf])
def test_evenly_spaced_ticks_are_held_as_in_fewer_steps_where_that_is_better(
    reliable: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "HOPELESS", np.inf)
    monkeypatch.setattr(plan, "RELIABLE", reliable)
    even = spread(TICKS, 8)
    far = partial(errors, positions=6 * LATE)
    for answers in (0.0, 2.0, 6.0, 20.0):
        at = partial(far, answers=answers * ALIKE)
        found, held = planned(at, even, forced=()), at(HELD, False)(even)
        if found.corrects:
            assert at(found.caution)(found.ticks) < held
        else:
            assert (found.ticks, found.caution) == (tuple(even), HELD)
            assert min(at(caution)(even) for caution in CAUTIONS) >= held / NEAR
    assert planned(partial(far, answers=0 * ALIKE), even, forced=()).corrects
    # Moved ticks can lie so close that nothing has to be held.
    assert planned(partial(far, answers=20 * ALIKE), even, forced=()).corrects is (reliable > 0)


@pytest.mark.usefixtures("any_is_reliable")
def test_where_the_best_plan_is_hopeless_evenly_spaced_ticks_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    even, at = spread(TICKS, 5), partial(errors, positions=6 * LATE, answers=30 * ALIKE)
    found = planned(at, even, forced=())
    assert (found.ticks, found.caution, found.corrects) == (tuple(even), HELD, False)
    monkeypatch.setattr(plan, "HOPELESS", np.inf)
    better = planned(at, even, forced=())
    assert better.corrects
    assert HOPELESS < better.expected < found.expected


def test_what_computes_everything_is_predicted_by_the_covariance() -> None:
    found = planned(errors, range(TICKS), forced=())
    assert (found.expected, found.corrects, found.caution) == (0, True, CAUTIONS[-1])


def test_where_errors_are_met_more_stiffly_outputs_are_predicted_more_carefully() -> None:
    chosen = [
        planned(partial(errors, answers=np.full(TICKS, stiff)), spread(TICKS, 5), forced=()).caution
        for stiff in (1.0, 6.0, 12.0)
    ]
    sizes = [predicting_weights(caution) for caution in chosen]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 1.2 * sizes[-1]


def predicting_weights(caution: Caution) -> float:
    """The sum of the sizes of those that predict one tick."""
    believed = process(LATE).believed(caution.roughness)
    return float(np.abs(conditional_weights(believed, [0, 3, 6], [8], caution.noise)).sum())


def test_the_stiffer_the_less_extrapolation_gains_over_holding() -> None:
    even = spread(TICKS, 5)
    gains = []
    for stiff in (2.0, 6.0, 12.0):
        at = partial(errors, answers=stiff * ALIKE)
        gains.append(at(HELD)(even) / at(Caution(1e-3, 0.0))(even))
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1 > gains[-1]
