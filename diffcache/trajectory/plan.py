"""Where to compute: the ticks that make the expected error of a run's result small, and how far to trust the covariance."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diffcache.schedulers.errors import ScheduleError
from diffcache.trajectory.result_error import DOUBT, WINDOW, ResultError, Trust

HELD = Trust(1e-3, 1e4)
"""So rough a process is predicted by its newest output."""

TRUSTS = (
    *(Trust(noise, roughness) for roughness in (0.0, 1e-2, 1e-1, 1.0) for noise in (1e-3, 1e-5, 1e-2)),
    HELD,
)
"""These are tried."""

FEW = 8
"""Fewer computed ticks than this stay where they are: over such gaps a covariance says too little to move them."""

NEAR = 1.15
"""Expected squared errors that differ by less than this factor count as equal; then the smoother process is taken."""

FOR_LONG_RUNS = Trust(1e-3, 1e-2)
LONGEST = 100
"""In longer runs a search takes seconds, and neighbours are so alike that it hardly matters."""

STRIDES = (4, 2, 1)
"""By how many ticks computed ticks are moved in search of a better plan, one after the other."""

ROUNDS = 30
"""Of moves at one stride, at most."""

Ticks = NDArray[np.intp]


@dataclass(frozen=True)
class TrajectoryPlan:
    """What a run does.

    Attributes:
        ticks: that are computed, by rising number.
        trust: with which reused ticks are predicted and corrected.
        expected: root mean square error of the result, as a fraction of the velocities'.
        corrects: reused ticks are corrected.
    """

    ticks: tuple[int, ...]
    trust: Trust
    expected: float
    corrects: bool = True


def planned(
    errors: Callable[[Trust, bool], ResultError],
    even: Sequence[int],
    forced: Collection[int],
    together: int = 1,
) -> TrajectoryPlan:
    """A plan with as many computed ticks as `even` has.

    Fewer than `FEW` ticks stay where they are, and so do those of runs longer than `LONGEST`. If the error is expected to be smaller when
    outputs of evenly spaced ticks are held and nothing is corrected, as a first-order solver does in fewer steps, then that is the plan.

    Args:
        errors: of the result, by how far the covariance is trusted, and whether reused ticks are corrected. Plans are chosen with
            their doubt; the error of the plan is expected for the usual `DOUBT`.
        even: the computed ticks to start with, by rising number from 0.
        forced: ticks among them that are not moved.
        together: see `moved`.

    Raises:
        ScheduleError: with this covariance and response no finite error can be expected.
    """
    held = errors(HELD, False)
    is_long = held.num_ticks > LONGEST
    tried = [errors(trust, True) for trust in ((FOR_LONG_RUNS,) if is_long else TRUSTS)]
    ticks, expected = list(even), [error(even) for error in tried]
    if not np.isfinite(expected).any():
        raise ScheduleError(
            "trajectory: no error can be expected with this covariance and response: measure them again."
        )
    if len(even) >= FEW and not is_long:
        better = moved(tried[int(np.argmin(expected))], even, {0, *forced}, together)
        found = [error(better) for error in tried]
        if min(found) < min(expected):
            ticks, expected = better, found
    chosen = next(i for i, error in enumerate(expected) if error <= NEAR * min(expected))
    if expected[chosen] <= held(even):
        return _plan(tried[chosen], ticks)
    return _plan(held, even, corrects=False)


def _plan(error: ResultError, ticks: Sequence[int], corrects: bool = True) -> TrajectoryPlan:
    return TrajectoryPlan(tuple(ticks), error.trust, math.sqrt(max(error(ticks, DOUBT), 0.0)), corrects)


def moved(error: ResultError, start: Sequence[int], forced: Collection[int], together: int = 1) -> list[int]:
    """Moves computed ticks until no move makes the expected error smaller.

    Args:
        error: of the result.
        start: the computed ticks to start with, by rising number.
        forced: ticks among them that are not moved.
        together: up to so many neighbours are moved at once. More find better plans, in more time.
    """
    ticks, least = np.array(start), error(start)
    free = [i for i, tick in enumerate(start) if tick not in forced]
    for stride in STRIDES:
        for _ in range(ROUNDS):
            tried = _moves(ticks, free, stride, together, error.num_ticks)
            if not len(tried):
                break
            found = error.of(tried)
            if not found.min() < least:
                break
            combined = _together(ticks, tried[found.argsort()][: int((found < least).sum())])
            both = np.stack([tried[found.argmin()], combined])
            errors = error.of(both)
            ticks, least = both[errors.argmin()], float(errors.min())
    return [int(tick) for tick in ticks]


def _moves(ticks: Ticks, free: Sequence[int], stride: int, together: int, num_ticks: int) -> Ticks:
    """All plans in which some neighbouring computed ticks lie `stride` ticks earlier or later, [plans, computed]."""
    one = np.eye(len(ticks), dtype=np.intp)[free]
    lengths = range(1, min(together, len(free)) + 1)
    runs = [
        np.sum([one[i : len(free) - length + 1 + i] for i in range(length)], axis=0) for length in lengths
    ]
    steps = stride * np.concatenate([one[:0], *runs])
    plans: Ticks = np.concatenate([ticks - steps, ticks + steps])
    return plans[(np.diff(plans, prepend=-1, append=num_ticks) > 0).all(axis=1)]


def _together(ticks: Ticks, better: Ticks) -> Ticks:
    """All moves of better plans at once, best first, that are too far apart to matter to each other."""
    plan, taken = ticks.copy(), list[int]()
    for other in better:
        changed = np.flatnonzero(other != ticks).tolist()
        if all(abs(i - j) > WINDOW for i in changed for j in taken):
            plan[changed] = other[changed]
            taken += changed
    return plan
