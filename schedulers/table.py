"""The static cache scheduler that replays a schedule."""

from collections.abc import Sequence

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.steps import Decision, Step


class Table(CacheScheduler):
    """Does what the schedule says of one site, branch by branch."""

    def __init__(self, schedule: Schedule, site: str) -> None:
        self.schedule = schedule
        self.site = site

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return self.schedule.decision(self.site, step.branch, step.tick)
