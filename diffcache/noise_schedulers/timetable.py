"""The timetable of a run: how many ticks it has, and the noise level of each, as the noise scheduler tells."""

from typing import Any

from diffcache.noise_schedulers.influence import Influence
from diffcache.noise_schedulers.quirks import (
    first_index_of,
    sigmas_of,
    timesteps_of,
    training_times_of,
)
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Step


class Timetable:
    """The ticks of a run.

    Args:
        num_ticks: how many ticks there will be; None where nothing tells.
        sigmas: noise level at each of the noise scheduler's timesteps; None where unknown.
        training_times: its timesteps as fractions of its training steps; None where unknown.
        influence: of the outputs at its timesteps; None where the method does not need it, or no noise scheduler is known.
        first: index in the list of timesteps at which the run begins (above 0 for image-to-image).
        noise_scheduler: its class name; None in a hand-written loop.

    Attributes:
        steps: for each tick the `Step` of the whole denoiser, without a branch.
        moments: for each tick its `Moment`.
    """

    def __init__(
        self,
        num_ticks: int | None = None,
        sigmas: list[float] | None = None,
        training_times: list[float] | None = None,
        *,
        influence: Influence | None = None,
        first: int = 0,
        noise_scheduler: str | None = None,
    ) -> None:
        self.num_ticks = num_ticks
        self.noise_scheduler = noise_scheduler
        self.influence = influence
        self._sigmas = sigmas
        self._training_times = training_times
        self.first = first
        self.steps: list[Step] = []
        self.moments: list[Moment] = []
        self._tabulate()

    def moment(self, tick: int) -> Moment:
        """The moment of a tick, which may lie beyond the expected end of the run."""
        return self.moments[tick] if tick < len(self.moments) else Moment(tick, self.sigma(tick))

    def sigma(self, tick: int) -> float | None:
        """The noise level of a tick; None where unknown."""
        return self._at(tick, self._sigmas)

    def step(self, tick: int) -> Step:
        """The step of a tick, which may lie beyond the expected end of the run."""
        if tick < len(self.steps):
            return self.steps[tick]
        sigma = self.sigma(tick)
        repeats = tick > 0 and sigma is not None and sigma == self.sigma(tick - 1)
        return Step(
            tick,
            self.num_ticks,
            branch="",
            sigma=sigma,
            repeats_sigma=repeats,
            training_time=self._at(tick, self._training_times),
            weight=self._weight(tick),
        )

    def ratio(self, tick: int, other: int) -> float | None:
        """The influence of a tick's output, over that of another tick's; None where it is unknown."""
        return None if self.influence is None else self.influence.ratio(self.first + tick, self.first + other)

    def begins_at(self, first: int) -> None:
        """Corrects the index at which the run begins, once a call has shown it."""
        if first == self.first:
            return
        self.first = first
        if self._sigmas is not None and self.num_ticks is not None:
            self.num_ticks = min(self.num_ticks, len(self._sigmas) - first)
        self._tabulate()

    def forget_influence(self, why: str) -> None:
        """Makes the influence unknown, because the noise scheduler does something else than what was measured."""
        if self.influence is not None:
            self.influence.forget(why)
            self._tabulate()

    def run_sigmas(self) -> list[float] | None:
        """The noise level of each tick of the run; None where unknown."""
        if self._sigmas is None or self.num_ticks is None:
            return None
        return self._sigmas[self.first : self.first + self.num_ticks]

    def _tabulate(self) -> None:
        self.steps = []
        self.steps = [self.step(tick) for tick in range(self.num_ticks or 0)]
        self.moments = [step.moment for step in self.steps]

    def _weight(self, tick: int) -> float:
        """How much an error at a tick changes the result, over the mean of the run's ticks; 1 where it is unknown."""
        if self.influence is None or self.num_ticks is None:
            return 1.0
        run = range(self.first, self.first + self.num_ticks)
        return self.influence.weight(self.first + tick, run)

    def _at(self, tick: int, levels: list[float] | None) -> float | None:
        """The entry for a tick in a list that has one for each timestep."""
        index = self.first + tick
        return levels[index] if levels is not None and 0 <= index < len(levels) else None


def timetable_of(noise_scheduler: Any, num_timesteps: object, influence: Influence | None) -> Timetable:
    """The timetable of a loop that is about to begin.

    Args:
        noise_scheduler: after `set_timesteps` and `set_begin_index`; None where the pipeline has none.
        num_timesteps: the pipeline's `num_timesteps`; ignored unless it is a number of timesteps that are left.
        influence: of the outputs at the noise scheduler's timesteps; None where it was not measured.
    """
    timesteps = timesteps_of(noise_scheduler)
    if timesteps is None:
        ticks = num_timesteps if isinstance(num_timesteps, int) else None
        return Timetable(ticks, influence=influence)
    first = first_index_of(noise_scheduler)
    left = len(timesteps) - first
    return Timetable(
        num_timesteps if isinstance(num_timesteps, int) and 0 < num_timesteps <= left else left,
        sigmas_of(noise_scheduler),
        training_times_of(noise_scheduler),
        influence=influence,
        first=first,
        noise_scheduler=type(noise_scheduler).__name__,
    )
