"""The static cache scheduler that replays a schedule."""

from collections.abc import Sequence

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.steps import Decision, Step


class Table(CacheScheduler):
    """Decides as the schedule says for one denoiser and the sites inside it, branch by branch."""

    def __init__(self, schedule: Schedule, denoiser: str) -> None:
        self.schedule = schedule
        self.denoiser = denoiser

    def expected_error(self, computed: Sequence[int]) -> float | None:
        return self.schedule.expected_error

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return self.schedule.decision(step.full_name(self.denoiser), step.branch, step.tick)
