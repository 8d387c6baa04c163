"""The timetable of a run: how many ticks it has and at which noise levels, as the noise scheduler tells."""

from typing import Any

from diffcache.noise_schedulers.influence import Influence
from diffcache.noise_schedulers.quirks import sigmas_of, timesteps_of, training_times_of
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Step


class Timetable:
    """The noise levels of a run.

    Args:
        num_ticks: how many ticks there will be; None where nothing says so.
        sigmas: noise levels of the noise scheduler's whole list; None where unknown.
        training_times: its timesteps as fractions of its training steps; None where unknown.
        influence: of the outputs at its timesteps on the result; None where nobody asked, or no noise scheduler was seen.
        first: index in that list of the run's first tick (image-to-image starts later).
        noise_scheduler: class name; None in a hand-written loop.

    Attributes:
        steps: what is known of each tick before any branch is: steps of the whole denoiser without a branch.
        moments: when each tick is.
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
        self._write_down()

    def moment(self, tick: int) -> Moment:
        """When a tick is, also beyond the expected end of the run."""
        return self.moments[tick] if tick < len(self.moments) else Moment(tick, self.sigma(tick))

    def sigma(self, tick: int) -> float | None:
        """Noise level of a tick; None where unknown."""
        return self._at(tick, self._sigmas)

    def step(self, tick: int) -> Step:
        """What is known of a tick, also beyond the expected end of the run."""
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

    def ratio(self, tick: int, to: int) -> float | None:
        """By what the output of a tick moves the result, over what that of another does; None where that is unknown."""
        return None if self.influence is None else self.influence.ratio(self.first + tick, self.first + to)

    def begins_at(self, first: int) -> None:
        """The run's first tick has been seen to have this index in the noise scheduler's list."""
        if first == self.first:
            return
        self.first = first
        if self._sigmas is not None and self.num_ticks is not None:
            self.num_ticks = min(self.num_ticks, len(self._sigmas) - first)
        self._write_down()

    def forget_influence(self, why: str) -> None:
        """The noise scheduler does something else than what influence was measured with."""
        if self.influence is not None:
            self.influence.forget(why)
            self._write_down()

    def of_run(self) -> list[float] | None:
        """The noise level of each tick; None where unknown."""
        if self._sigmas is None or self.num_ticks is None:
            return None
        return self._sigmas[self.first : self.first + self.num_ticks]

    def _write_down(self) -> None:
        self.steps = []
        self.steps = [self.step(tick) for tick in range(self.num_ticks or 0)]
        self.moments = [step.moment for step in self.steps]

    def _weight(self, tick: int) -> float:
        """How much an error at a tick matters, over the mean of the run's; 1 where that is unknown."""
        if self.influence is None or self.num_ticks is None:
            return 1.0
        run = range(self.first, self.first + self.num_ticks)
        return self.influence.weight(self.first + tick, run)

    def _at(self, tick: int, levels: list[float] | None) -> float | None:
        index = self.first + tick
        return levels[index] if levels is not None and 0 <= index < len(levels) else None


def timetable_of(noise_scheduler: Any, num_timesteps: object, influence: Influence | None) -> Timetable:
    """The timetable of a loop that is about to begin.

    Args:
        noise_scheduler: after `set_timesteps` and `set_begin_index`; None where the pipeline has none.
        num_timesteps: the pipeline's own count, where it has one.
        influence: of the noise scheduler's timesteps; None where it was not measured.
    """
    timesteps = timesteps_of(noise_scheduler)
    if timesteps is None:
        ticks = num_timesteps if isinstance(num_timesteps, int) else None
        return Timetable(ticks, influence=influence)
    first = getattr(noise_scheduler, "begin_index", None) or 0
    left = len(timesteps) - first
    counted = isinstance(num_timesteps, int) and 0 < num_timesteps <= left
    return Timetable(
        num_timesteps if counted and isinstance(num_timesteps, int) else left,
        sigmas_of(noise_scheduler),
        training_times_of(noise_scheduler),
        influence=influence,
        first=first,
        noise_scheduler=type(noise_scheduler).__name__,
    )
