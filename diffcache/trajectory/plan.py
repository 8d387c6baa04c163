"""Where to compute: the ticks that make the expected error of a run's result small, and how far to trust the covariance."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from diffcache.trajectory.result_error import ResultError, Trust

TRUSTS = tuple(
    Trust(noise, roughness) for roughness in (0.0, 1e-2, 1e-1, 1.0) for noise in (1e-3, 1e-5, 1e-2)
)
"""These are tried."""

NEAR = 1.15
"""Expected squared errors that differ by less than this factor count as equal; then the smoother process is taken."""

FOR_LONG_RUNS = Trust(1e-3, 1e-2)
MOST_TICKS = 100
"""With more computed ticks a search takes seconds, and neighbours are so alike that it hardly matters."""

STRIDES = (4, 2, 1)
"""By how many ticks computed ticks are moved in search of a better plan, one after the other."""

SWEEPS = 30
"""How often all computed ticks are tried at one stride, at most."""


@dataclass(frozen=True)
class TrajectoryPlan:
    """What a run does.

    Attributes:
        ticks: that are computed, by rising number.
        trust: with which reused ticks are predicted and corrected.
        expected: root mean square error of the result, as a fraction of the velocities'.
    """

    ticks: tuple[int, ...]
    trust: Trust
    expected: float


def planned(
    errors: Callable[[Trust], ResultError],
    even: Sequence[int],
    forced: Collection[int],
    evenness: float = 0.0,
) -> TrajectoryPlan:
    """A plan with as many computed ticks as `even` has, between these and the best ones that moves of single ticks find.

    More than `MOST_TICKS` ticks stay where they are.

    Args:
        errors: of the result, by how far the covariance is trusted.
        even: the computed ticks to start with, by rising number from 0.
        forced: ticks among them that are not moved.
        evenness: 0 takes the best ticks, 1 leaves them as they are, 0.5 takes those halfway.
    """
    ticks, trusts = even, (FOR_LONG_RUNS,) if len(even) > MOST_TICKS else TRUSTS
    tried = [errors(trust) for trust in trusts]
    if evenness < 1 and len(even) <= MOST_TICKS:
        best = moved(min(tried, key=lambda error: error(even)), even, {0, *forced})
        ticks = [int(evenness * a + (1 - evenness) * b + 0.5) for a, b in zip(even, best, strict=True)]
    error = _simplest(tried, ticks)
    return TrajectoryPlan(tuple(ticks), error.trust, math.sqrt(max(error(ticks), 0.0)))


def _simplest(tried: Sequence[ResultError], ticks: Sequence[int]) -> ResultError:
    """The first one that is near the least."""
    expected = [error(ticks) for error in tried]
    return next(error for error, found in zip(tried, expected, strict=True) if found <= NEAR * min(expected))


def moved(error: ResultError, start: Sequence[int], forced: Collection[int]) -> list[int]:
    """Moves computed ticks until no single move makes the expected error smaller."""
    ticks, least = list(start), error(start)
    for stride in STRIDES:
        for _ in range(SWEEPS):
            before = least
            for i, tick in enumerate(ticks):
                if tick in forced:
                    continue
                for step in (-stride, stride):
                    ceiling = ticks[i + 1] if i + 1 < len(ticks) else error.num_ticks
                    if not ticks[i - 1] < ticks[i] + step < ceiling:
                        continue
                    tried = [*ticks[:i], ticks[i] + step, *ticks[i + 1 :]]
                    found = error(tried)
                    if found < least:
                        ticks, least = tried, found
            if least == before:
                break
    return ticks
