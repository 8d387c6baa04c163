"""The static cache scheduler that is a list of ticks."""

from collections.abc import Iterable, Sequence

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.steps import Decision, Step


class Ticks(CacheScheduler):
    """Computes these ticks only."""

    by_site = False

    def __init__(self, computed: Iterable[int]) -> None:
        self.computed_ticks = frozenset(computed)

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return Decision.COMPUTE if step.tick in self.computed_ticks else Decision.PREDICT
