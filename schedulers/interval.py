"""The static cache scheduler: every so many ticks."""

from collections.abc import Sequence

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.steps import Decision, Step

Window = tuple[float, float]
"""Of training time, as a fraction (1 is pure noise): low end and high end, both excluded."""


class Interval(CacheScheduler):
    """Computes tick `first`, every `interval`-th tick before and after it, and all that lie outside a window.

    Args:
        interval: distance between computed ticks; 1 computes all.
        first: a computed tick.
        window: where ticks may be reused; None for the whole run.
    """

    by_site = False

    def __init__(self, interval: int, first: int = 0, window: Window | None = None) -> None:
        self.interval = interval
        self.first = first
        self.window = window

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        if self.window is not None and not self.window[0] < step.time < self.window[1]:
            return Decision.COMPUTE
        due = (step.tick - self.first) % self.interval == 0
        return Decision.COMPUTE if due else Decision.PREDICT
