"""MagCache's cache scheduler: reuse while the known drift of the residual's magnitude stays small."""

from collections.abc import Sequence

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.steps import Decision, Step


class Magnitude(CacheScheduler):
    """P <- P * ratio[s], E <- E + |1 - P|; reuse while E <= threshold (arXiv 2506.09045). Reads no tensor.

    Args:
        ratios: mean magnitude of tick s's residual over that of the tick before, one for each tick.
        threshold: bound on E.
        cap: most reuses in a row.
        begin: the first tick that counts; those before are warm-up.
        forced: ticks that are computed whatever E is.
    """

    def __init__(
        self, ratios: Sequence[float], threshold: float, cap: int, begin: int, forced: Sequence[int] = ()
    ) -> None:
        self.computed_ticks = _computed(ratios, threshold, cap, begin, forced)

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return Decision.COMPUTE if step.tick in self.computed_ticks else Decision.PREDICT


def resampled(ratios: Sequence[float], num_ticks: int) -> list[float]:
    """Ratios for another number of ticks: the nearest neighbour of each, as published."""
    last, steps = len(ratios) - 1, max(num_ticks - 1, 1)
    return [ratios[-1]] if num_ticks == 1 else [ratios[round(i * last / steps)] for i in range(num_ticks)]


def _computed(
    ratios: Sequence[float], threshold: float, cap: int, begin: int, forced: Sequence[int]
) -> set[int]:
    computed = set(range(min(begin, len(ratios))))
    product, error, reuses = 1.0, 0.0, 0
    for tick in range(begin, len(ratios)):
        product *= ratios[tick]
        error += abs(1 - product)
        reuses += 1
        if error > threshold or reuses > cap or tick in forced:
            computed.add(tick)
            product, error, reuses = 1.0, 0.0, 0
    return computed
