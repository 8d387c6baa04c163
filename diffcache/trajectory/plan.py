"""Where to compute: the ticks that make the expected error of a run's result small, and how careful predictions are."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diffcache.schedulers.errors import ScheduleError
from diffcache.trajectory.error_model import Caution, ErrorModel, with_each
from diffcache.trajectory.search import Rounding, in_place, moved, neighbours, spread_anew

HELD = Caution(1e-3, 1e4)
"""With so much roughness every prediction is the newest output."""

CAUTIONS = (
    HELD,
    Caution(1e-2, 0.0),
    *(Caution(1e-3, roughness) for roughness in (1.0, 1e-1, 1e-2, 0.0)),
    Caution(1e-5, 0.0),
)
"""These are tried. Weights grow from the first one to the last. Where several are expected to do equally well (`EQUALLY_WELL`), the first of them is taken.

`HELD` is not tried where nothing is corrected, because its errors are the largest before correction.
"""

FEWEST_MOVED = 4
"""Fewer computed ticks than this stay where they are, as a prediction has hardly a past there, unless moving them is expected to help much (`MUCH`)."""

MUCH = 4.0
"""Few computed ticks are moved if that makes the expected error so many times as small. A distilled model in four steps is such a case: its last velocity is
nearly the one before, and 3 of 4 ticks give 57 dB without it, 22 with it (turbo)."""

RELIABLE = 0.1
"""Ticks are moved only if the error that is expected of the moved plan is at most this. Larger errors don't add up as the
covariance says, so there moved ticks are often worse than evenly spaced ones."""

NEAR = 1.07
"""Expected errors that differ by less than this factor count as equal."""

EQUALLY_WELL = 0.5
"""With the universal covariance cautions count as equal whose errors are larger than the least one by at most so many times its square. Large errors come of long
gaps, across which steep weights are a risk that the covariance does not show; across short gaps they are none, and are worth what they are expected to be.
With the pipeline's own the errors that are expected across long gaps are small, too, and steep weights are as much of a risk: there it is `NEAR`."""

HOPELESS = 0.3
"""Where a larger error is expected of the best plan, outputs of evenly spaced ticks are held: so far off, extrapolation is no better in the mean, and
now and then much worse."""

TOGETHER = 3
"""How many neighbours are moved at once where the covariance is the pipeline's own. With the universal one none is moved: gains that a longer search
finds there do not appear in real runs."""

LONGEST = 300
"""In longer runs a search takes seconds: ticks stay evenly spaced, and only `FOR_LONG_RUNS` is tried."""

FOR_LONG_RUNS = Caution(1e-3, 1e-2)
"""The only caution that is tried in runs longer than `LONGEST`."""

LONGEST_MOVED = 100
"""In longer runs it takes seconds to move single ticks, or to search a second time without the last one."""


@dataclass(frozen=True)
class TrajectoryPlan:
    """What a run does.

    Attributes:
        ticks: that are computed, by rising number.
        caution: of its predictions.
        expected: error of the result, root mean square over its elements, as a fraction of the velocities' (`ErrorModel.likely`).
        corrects: reused ticks are corrected.
    """

    ticks: tuple[int, ...]
    caution: Caution
    expected: float
    corrects: bool = True


class Start(NamedTuple):
    """Evenly spaced ticks, and those of them that are not moved; of both the first is 0."""

    even: Sequence[int]
    forced: Collection[int]


def planned(
    errors: Callable[[Caution, bool], ErrorModel], starts: Sequence[Start], *, is_own: bool = False
) -> TrajectoryPlan:
    """A plan with as many computed ticks as the starts have: the one from the first start, unless another's expected error is smaller by more than `NEAR`.

    To save time, only starts are searched from whose evenly spaced ticks do better than the first one's.

    Ticks are moved only where that brings the expected error down to `RELIABLE`. Fewer than `FEWEST_MOVED` stay where they are, unless it makes the error much smaller
    (`MUCH`), and so do those of runs longer than `LONGEST`. If outputs of evenly spaced ticks, held and not corrected, are expected to do equally well (`NEAR`), as a first-order solver in
    fewer steps, then that is the plan; and so it is where the error is `HOPELESS`. Where nothing is corrected at all, outputs are held in this last case only.

    Args:
        errors: the model of the result's error, by how careful predictions are, and whether reused ticks are corrected.
        starts: with equally many ticks.
        is_own: the covariance was measured on the pipeline. Then single ticks are moved, too, and cautions count as equal within `NEAR`.

    Raises:
        ScheduleError: with this covariance and response no finite error can be expected.
    """
    first, *others = (_Search(errors, start, is_own) for start in starts)
    plan = first.plan()
    for search in others:
        if search.least_even < first.least_even:
            other = search.plan()
            expected, less = (errors(each.caution, each.corrects)(each.ticks) for each in (plan, other))
            plan = other if NEAR * less < expected else plan
    return plan


class Candidate(NamedTuple):
    """Ticks that may be computed, the error of the result by how the others are predicted, and the error that plans make small."""

    error: ErrorModel
    ticks: Sequence[int]
    expected: float


class _Search:
    """The search for a plan from evenly spaced ticks; for the arguments see `planned`."""

    def __init__(self, errors: Callable[[Caution, bool], ErrorModel], start: Start, is_own: bool) -> None:
        self.even, self.fixed = start.even, {0, *start.forced}
        self.is_own = is_own
        self.held = errors(HELD, False)
        # Any caution tells how long the run is, and whether it is corrected.
        usual = errors(FOR_LONG_RUNS, True)
        self.corrects = usual.largest_ratio > 0
        tried = [usual] if usual.num_ticks > LONGEST else [errors(caution, True) for caution in CAUTIONS]
        if not self.corrects:
            tried = [error for error in tried if error.caution != HELD]
        self.candidates = _each(tried, self.even)
        self.least_even = min(map(_expected, self.candidates))

    def plan(self) -> TrajectoryPlan:
        """See `planned`."""
        even, candidates, num_ticks = self.even, self.candidates, self.held.num_ticks
        if len(even) == num_ticks:
            return TrajectoryPlan(tuple(even), candidates[-1].error.caution, 0.0)
        if not math.isfinite(self.least_even):
            raise ScheduleError(
                "trajectory: no error can be expected with this covariance and response: measure them again, or pass the noise levels that the "
                "pipeline was made for."
            )
        if num_ticks <= LONGEST:
            better = _searched(candidates, self.fixed, self.is_own)
            least_moved = min(map(_expected, better))
            moves = len(even) >= FEWEST_MOVED or least_moved <= self.least_even / MUCH
            if moves and least_moved <= RELIABLE:
                candidates = better
        least = min(map(_expected, candidates))
        equal = NEAR if self.is_own else 1 + EQUALLY_WELL * least
        chosen = next(one for one in candidates if one.expected <= equal * least)
        is_best = not self.corrects or NEAR * chosen.expected <= self.held(even)
        if least <= HOPELESS and is_best:
            return TrajectoryPlan(
                tuple(chosen.ticks), chosen.error.caution, chosen.error.likely(chosen.ticks)
            )
        return TrajectoryPlan(tuple(even), HELD, self.held.likely(even), corrects=False)


def _each(errors: Sequence[ErrorModel], ticks: Sequence[int]) -> list[Candidate]:
    """The same ticks with each prediction."""
    return [
        Candidate(error, ticks, found) for error, found in zip(errors, with_each(errors, ticks), strict=True)
    ]


def _searched(candidates: Sequence[Candidate], fixed: Collection[int], is_own: bool) -> list[Candidate]:
    """Candidates with ticks that are expected to be better.

    Ticks are searched with the caution that is best on evenly spaced ticks, and are then tried with all.

    Args:
        candidates: with evenly spaced ticks.
        fixed: ticks that are not moved.
        is_own: see `planned`.
    """
    least = min(candidates, key=_expected)
    first = least.error
    better = _spread_anew(least, fixed)
    if is_own and first.num_ticks <= LONGEST_MOVED:
        starts = [better, _spread_anew(least, fixed, in_place)]
        better = min((moved(first, one, fixed, TOGETHER) for one in starts), key=first)
    found = _each([one.error for one in candidates], better)
    return found if min(map(_expected, found)) < least.expected else [*candidates]


def _spread_anew(candidate: Candidate, fixed: Collection[int], whole: Rounding = neighbours) -> Sequence[int]:
    """Ticks that are expected to be better than those of a candidate, or these."""
    return spread_anew(candidate.error, candidate.ticks, candidate.expected, fixed, whole)


def _expected(candidate: Candidate) -> float:
    return candidate.expected
