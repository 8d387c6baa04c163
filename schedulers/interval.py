"""The static cache scheduler that computes every nth tick."""

from collections.abc import Sequence

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.steps import Decision, Step

Window = tuple[float, float]
"""A stretch of training time, as fractions (1 is pure noise): its low end and its high end, both excluded."""


class Interval(CacheScheduler):
    """Computes every `interval`-th tick, and all ticks outside a window.

    Args:
        interval: distance between computed ticks; 1 computes all.
        first: a tick that is computed. The others are counted from it, forwards and backwards.
        window: where ticks may be reused; None: in the whole run.
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
