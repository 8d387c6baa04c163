"""MagCache's cache scheduler: reuse while the magnitude of the residual is known to have changed little."""

from collections.abc import Sequence

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.steps import Decision, Step


class Magnitude(CacheScheduler):
    """P <- P * ratio[s], E <- E + |1 - P|; reuse while E <= threshold (arXiv 2506.09045). It reads no tensor.

    Args:
        ratios: for each tick the mean magnitude of its residual over that of the tick before.
        threshold: bound on E.
        cap: the most reuses in a row.
        begin: length of the warm-up in ticks. These are computed, and P and E start after them. Without one tick 0 is still computed.
        forced: ticks that are computed whatever E is.
    """

    def __init__(
        self, ratios: Sequence[float], threshold: float, cap: int, begin: int, forced: Sequence[int] = ()
    ) -> None:
        self.computed_ticks = _computed(ratios, threshold, cap, begin, forced)

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return Decision.COMPUTE if step.tick in self.computed_ticks else Decision.PREDICT


def resampled(ratios: Sequence[float], num_ticks: int) -> list[float]:
    """Ratios for another number of ticks: each tick takes the nearest one, as published."""
    last, steps = len(ratios) - 1, max(num_ticks - 1, 1)
    return [ratios[-1]] if num_ticks == 1 else [ratios[round(i * last / steps)] for i in range(num_ticks)]


def _computed(
    ratios: Sequence[float], threshold: float, cap: int, begin: int, forced: Sequence[int]
) -> set[int]:
    begin = max(begin, 1)  # nothing is stored before tick 0, so it is no reuse
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
