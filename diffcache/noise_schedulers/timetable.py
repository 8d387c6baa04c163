"""The timetable of a run: how many ticks it has, and the noise level of each, as the noise scheduler tells."""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from diffcache.noise_schedulers.influence import Influence, Matrix
from diffcache.noise_schedulers.levels import UNKNOWN, Level, Parametrisation, levels_of
from diffcache.noise_schedulers.timesteps import first_index_of, timesteps_before, timesteps_of
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Step


class Timetable:
    """The ticks of a run.

    Args:
        num_ticks: how many ticks there will be; None where nothing tells.
        levels: what is known of each of the noise scheduler's timesteps; empty where nothing is.
        influence: of the outputs at its timesteps; None where the method does not need it, or no noise scheduler is known.
        first: index in the list of timesteps at which the run begins (above 0 for image-to-image).
        noise_scheduler: its class name; None in a hand-written loop that does not name it.
        asked: number of steps that the noise scheduler was asked for. It may make more ticks of each (Heun), or leave some out (image-to-image);
            None where it is unknown.

    Attributes:
        steps: for each tick the `Step` of the whole denoiser, without a branch.
        moments: for each tick its `Moment`.
    """

    def __init__(
        self,
        num_ticks: int | None = None,
        levels: Sequence[Level] = (),
        *,
        influence: Influence | None = None,
        first: int = 0,
        noise_scheduler: str | None = None,
        asked: int | None = None,
    ) -> None:
        self.num_ticks = num_ticks
        self.asked = asked
        self.noise_scheduler = noise_scheduler
        self.influence = influence
        self._levels = levels
        self.first = first
        self.steps: list[Step] = []
        self.moments: list[Moment] = []
        self._comparable_from = 0
        self._tabulate()

    def moment(self, tick: int) -> Moment:
        """The moment of a tick, which may lie beyond the expected end of the run."""
        return self.moments[tick] if tick < len(self.moments) else self.step(tick).moment

    def parametrisation(self, tick: int) -> Parametrisation:
        """What the denoiser's output at a tick is; the velocity where nothing says otherwise."""
        return self._level(tick).parametrisation

    def step(self, tick: int) -> Step:
        """The step of a tick, which may lie beyond the expected end of the run."""
        if tick < len(self.steps):
            return self.steps[tick]
        level = self._level(tick)
        repeats = tick > 0 and level.sigma is not None and level.sigma == self._level(tick - 1).sigma
        return Step(
            tick,
            self.num_ticks,
            branch="",
            sigma=level.sigma,
            angle=level.angle,
            repeats_sigma=repeats,
            training_time=level.time,
            scale=level.parametrisation.of_velocity,
            turned=level.turned,
            is_flow=level.is_flow,
        )

    def ratio(self, tick: int, other: int) -> float | None:
        """The influence of a tick's output, over that of a later tick's; None where it is unknown, or guidance has changed."""
        if self.influence is None or not self.are_comparable(tick, other):
            return None
        return self.influence.ratio(self.first + tick, self.first + other)

    def knows_influence(self, tick: int) -> bool:
        """Whether a tick's influence on the result is known, and is not 0."""
        return self.ratio(tick, tick) is not None

    def velocity_ratio(self, tick: int, other: int) -> float | None:
        """The same of velocities: an output changes with its velocity by `of_velocity`."""
        found = self.ratio(tick, other)
        if found is None:
            return None
        return found * self.parametrisation(tick).of_velocity / self.parametrisation(other).of_velocity

    def are_comparable(self, tick: int, later: int) -> bool:
        """Whether guidance weighs outputs at a later tick as it did at this one."""
        return not tick < self._comparable_from <= later

    def run_influence(self) -> tuple[tuple[float, ...], ...] | None:
        """How much the input at each tick of the run, and the result, change with the velocity at each tick; None where that is unknown.

        Returns:
            [ticks + 1, ticks]
        """
        return self._of_velocities(Influence.run)

    def run_clipped_influence(self, guidance: float) -> tuple[tuple[float, ...], ...] | None:
        """The influence of velocities where predicted samples are clipped (`Influence.clipped_run`); None where they are not, or it is unknown."""
        return self._of_velocities(partial(Influence.clipped_run, guidance=guidance))

    def _of_velocities(
        self, part: Callable[[Influence, int, int], Matrix]
    ) -> tuple[tuple[float, ...], ...] | None:
        """A part of the influence of outputs, as the influence of velocities; None where it is unknown."""
        if self.influence is None or self.num_ticks is None:
            return None
        sizes = [self.parametrisation(tick).of_velocity for tick in range(self.num_ticks)]
        rows = (
            tuple(map(operator.mul, row, sizes)) for row in part(self.influence, self.first, self.num_ticks)
        )
        return tuple(rows) or None

    def begins_at(self, first: int) -> None:
        """Corrects the index at which the run begins, once a call has shown it."""
        if first == self.first:
            return
        self.first = first
        if self._levels and self.num_ticks is not None:
            self.num_ticks = min(self.num_ticks, len(self._levels) - first)
        self._tabulate()

    def guidance_changes(self, tick: int) -> None:
        """From this tick on guidance weighs outputs differently, so those of earlier ticks cannot be compared with them."""
        self._comparable_from = tick

    def run_sigmas(self) -> list[float] | None:
        """The noise level of each tick of the run; None where unknown."""
        if self.num_ticks is None:
            return None
        sigmas = [level.sigma for level in self._levels[self.first : self.first + self.num_ticks]]
        known = [sigma for sigma in sigmas if sigma is not None]
        return known if known and len(known) == len(sigmas) else None

    def _tabulate(self) -> None:
        self.steps = []
        self.steps = [self.step(tick) for tick in range(self.num_ticks or 0)]
        self.moments = [step.moment for step in self.steps]

    def _level(self, tick: int) -> Level:
        index = self.first + tick
        return self._levels[index] if 0 <= index < len(self._levels) else UNKNOWN


def timetable_of(
    noise_scheduler: Any,
    num_timesteps: object,
    influence: Influence | None,
    denoising_end: object = None,
) -> Timetable:
    """The timetable of a loop that is about to begin.

    Args:
        noise_scheduler: after `set_timesteps` and `set_begin_index`; None where the pipeline has none.
        num_timesteps: the pipeline's `num_timesteps`; ignored unless it is a number of timesteps that are left.
        influence: of the outputs at the noise scheduler's timesteps; None where it was not measured.
        denoising_end: what the call was given under this name: the share of the training steps after which the loop ends. Asked where
            the pipeline has no number of timesteps (modular pipelines).
    """
    timesteps = timesteps_of(noise_scheduler)
    if timesteps is None:
        ticks = num_timesteps if isinstance(num_timesteps, int) else None
        return Timetable(ticks, influence=influence)
    first = first_index_of(noise_scheduler)
    left = len(timesteps) - first
    if num_timesteps is None:
        num_timesteps = timesteps_before(noise_scheduler, denoising_end)
    return Timetable(
        num_timesteps if isinstance(num_timesteps, int) and 0 < num_timesteps <= left else left,
        levels_of(noise_scheduler),
        influence=influence,
        first=first,
        noise_scheduler=type(noise_scheduler).__name__,
        asked=getattr(noise_scheduler, "num_inference_steps", None),
    )
