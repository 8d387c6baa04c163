"""The static cache scheduler that replays a schedule."""

from collections.abc import Sequence

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.steps import Decision, Step


class Table(CacheScheduler):
    """Does what the schedule says of one denoiser and the places inside it, branch by branch."""

    def __init__(self, schedule: Schedule, denoiser: str) -> None:
        self.schedule = schedule
        self.denoiser = denoiser

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return self.schedule.decision(step.full_name(self.denoiser), step.branch, step.tick)
