"""The static cache scheduler: every so many ticks."""

from collections.abc import Sequence

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.steps import Decision, Step


class Interval(CacheScheduler):
    """Computes the last warm-up tick and every `interval`-th tick after it.

    Args:
        interval: distance between computed ticks; 1 computes all.
        warmup_steps: ticks at the start that the guards compute; the count begins at the last of them.
    """

    def __init__(self, interval: int, warmup_steps: int) -> None:
        self.interval = interval
        self.first = max(warmup_steps - 1, 0)

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        due = (step.tick - self.first) % self.interval == 0
        return Decision.COMPUTE if due else Decision.PREDICT
