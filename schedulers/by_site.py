"""The static cache scheduler that decides differently for different sites."""

from collections.abc import Callable, Sequence

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.steps import Decision, Step


class BySite(CacheScheduler):
    """Has another static cache scheduler for each site.

    Args:
        choose: returns the scheduler of a site; None: the site is computed at every tick.
    """

    def __init__(self, choose: Callable[[Step], CacheScheduler | None]) -> None:
        self.choose = choose

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        scheduler = self.choose(step)
        return Decision.COMPUTE if scheduler is None else scheduler.decide(step, signal)
