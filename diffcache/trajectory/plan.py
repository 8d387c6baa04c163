"""Where to compute: the ticks that make the expected error of a run's result small, and how far to trust the covariance."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from diffcache.trajectory.result_error import ResultError, Trust

TRUSTS = tuple(
    Trust(noise, roughness) for noise in (1e-5, 1e-3, 1e-2) for roughness in (0.0, 1e-2, 1e-1, 1.0)
)
"""These are tried."""

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
    """

    ticks: tuple[int, ...]
    trust: Trust


def planned(
    errors: Callable[[Trust], ResultError], start: Sequence[int], forced: Collection[int]
) -> TrajectoryPlan:
    """The best plan with as many computed ticks as `start` has, as far as moves of single ticks find it.

    More than `MOST_TICKS` ticks stay where they are.

    Args:
        errors: of the result, by how far the covariance is trusted.
        start: the computed ticks to start with, by rising number from 0.
        forced: ticks among them that are not moved.
    """
    if len(start) > MOST_TICKS:
        return TrajectoryPlan(tuple(start), FOR_LONG_RUNS)
    tried = [errors(trust) for trust in TRUSTS]
    ticks = moved(min(tried, key=lambda error: error(start)), start, {0, *forced})
    best = min(tried, key=lambda error: error(ticks))
    return TrajectoryPlan(tuple(ticks), best.trust)


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
