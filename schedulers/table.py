"""The static cache scheduler that replays a schedule."""

from collections.abc import Sequence

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.schedule import EXPECTED_ERROR, Schedule
from diffcache.schedulers.steps import Decision, Step


class Table(CacheScheduler):
    """Decides as the schedule says for one denoiser and the sites inside it, branch by branch."""

    def __init__(self, schedule: Schedule, denoiser: str) -> None:
        self.schedule = schedule
        self.denoiser = denoiser

    @property
    def expected_error(self) -> float | None:
        """What was expected of the run that the schedule was made of."""
        expected = self.schedule.measured.get(EXPECTED_ERROR)
        return expected if isinstance(expected, float) else None

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return self.schedule.decision(step.full_name(self.denoiser), step.branch, step.tick)
