"""The timetable of a run: how many ticks it has and at which noise levels, as the noise scheduler tells."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffcache.noise_schedulers.influence import Influence
from diffcache.schedulers.steps import MODEL, Step


@dataclass(slots=True)
class Timetable:
    """The noise levels of a run.

    Attributes:
        num_ticks: how many ticks there will be; None where nothing says so.
        sigmas: noise levels of the noise scheduler's whole list, where known.
        times: its timesteps as fractions of its training steps, likewise.
        influence: of the outputs at its timesteps on the result; None where nobody asked, or no noise scheduler was seen.
        first: place in that list of the run's first tick (image-to-image starts later).
        noise_scheduler: class name; None in a hand-written loop.
    """

    num_ticks: int | None = None
    sigmas: list[float] | None = None
    first: int = 0
    noise_scheduler: str | None = None
    times: list[float] | None = None
    influence: Influence | None = None

    def sigma(self, tick: int) -> float | None:
        return self._at(tick, self.sigmas)

    def time(self, tick: int) -> float | None:
        return self._at(tick, self.times)

    def _at(self, tick: int, levels: list[float] | None) -> float | None:
        i = self.first + tick
        return levels[i] if levels is not None and 0 <= i < len(levels) else None

    def ratio(self, tick: int, to: int) -> float | None:
        """By what the output of a tick moves the result, over what that of another does; None where that is unknown."""
        return None if self.influence is None else self.influence.ratio(self.first + tick, self.first + to)

    def weight(self, tick: int) -> float:
        """How much an error at a tick matters, over the mean of the run's; 1 where that is unknown."""
        if self.influence is None or self.num_ticks is None:
            return 1.0
        run = range(self.first, self.first + self.num_ticks)
        return self.influence.weight(self.first + tick, run)

    def repeats(self, tick: int) -> bool:
        """Whether a tick stands at the noise level of the one before it."""
        sigma = self.sigma(tick)
        return tick > 0 and sigma is not None and sigma == self.sigma(tick - 1)

    def begins_at(self, first: int) -> None:
        """The run's first tick has been seen to be this one of the list."""
        self.first = first
        if self.sigmas is not None and self.num_ticks is not None:
            self.num_ticks = min(self.num_ticks, len(self.sigmas) - first)

    def of_run(self) -> list[float] | None:
        if self.sigmas is None or self.num_ticks is None:
            return None
        return self.sigmas[self.first : self.first + self.num_ticks]


@dataclass(frozen=True, slots=True)
class Turn:
    """Where in its run a denoiser call stands, as far as the loop knows.

    Attributes:
        tick: of the run.
        timetable: the run's noise levels.
        context: the guidance pass's name, where the pipeline gives one.
        by_order: tell guidance passes apart by their order inside the tick.
        lost: the run's ticks cannot be told apart.
    """

    tick: int
    timetable: Timetable
    context: str | None
    by_order: bool
    lost: bool = False

    def step(self, branch: str, site: str = MODEL, kind: str = MODEL) -> Step:
        """What a cache scheduler gets to know of it."""
        times = self.timetable
        sigma, repeats = times.sigma(self.tick), times.repeats(self.tick)
        time, weight = times.time(self.tick), times.weight(self.tick)
        return Step(self.tick, times.num_ticks, branch, sigma, repeats, site, kind, time, weight)


def sigmas_of(noise_scheduler: Any) -> list[float] | None:
    """The noise level at each of its timesteps, or None where it keeps neither sigmas nor alphas.

    This reads the device once per run, before the loop.
    """
    timesteps = getattr(noise_scheduler, "timesteps", None)
    if not isinstance(timesteps, Tensor) or timesteps.ndim != 1:
        return None
    sigmas = getattr(noise_scheduler, "sigmas", None)
    alphas = getattr(noise_scheduler, "alphas_cumprod", None)
    if isinstance(sigmas, Tensor) and sigmas.ndim == 1 and len(sigmas) >= len(timesteps):
        levels = [float(sigma) for sigma in sigmas[: len(timesteps)].tolist()]
        between = getattr(
            noise_scheduler, "sigmas_interpol", None
        )  # KDPM2: every second evaluation lies between
        if isinstance(between, Tensor):
            levels[1::2] = between[: len(levels)].tolist()[1::2]
    elif isinstance(alphas, Tensor) and not timesteps.is_floating_point():
        alpha = alphas.double().cpu()[timesteps.cpu().clamp(0, len(alphas) - 1)]
        levels = [float(sigma) for sigma in torch.sqrt((1 - alpha) / alpha).tolist()]
    else:
        return None
    return (
        levels if all(math.isfinite(level) for level in levels) else None
    )  # zero terminal SNR begins at infinity


def timetable_of(noise_scheduler: Any, num_timesteps: object) -> Timetable:
    """The timetable of a loop that is about to begin.

    Args:
        noise_scheduler: after `set_timesteps` and `set_begin_index`; None where the pipeline has none.
        num_timesteps: the pipeline's own count, where it has one.
    """
    timesteps = getattr(noise_scheduler, "timesteps", None)
    if not isinstance(timesteps, Tensor) or timesteps.ndim != 1:
        return Timetable(num_timesteps if isinstance(num_timesteps, int) else None)
    first = getattr(noise_scheduler, "begin_index", None) or 0
    left = len(timesteps) - first
    counted = isinstance(num_timesteps, int) and 0 < num_timesteps <= left
    ticks = num_timesteps if counted and isinstance(num_timesteps, int) else left
    name, training_steps = (
        type(noise_scheduler).__name__,
        getattr(noise_scheduler.config, "num_train_timesteps", None),
    )
    times = [float(t) / training_steps for t in timesteps.tolist()] if training_steps else None
    return Timetable(ticks, sigmas_of(noise_scheduler), first, name, times)


def place_in_list(time: object, noise_scheduler: Any) -> int | None:
    """Which of the noise scheduler's timesteps this is, if it is a view into their list. Reads nothing."""
    timesteps = getattr(noise_scheduler, "timesteps", None)
    if not isinstance(time, Tensor) or not isinstance(timesteps, Tensor) or timesteps.ndim != 1:
        return None
    if any(stride != 0 for stride in time.stride()) and time.numel() > 1:
        return None
    if time.untyped_storage().data_ptr() != timesteps.untyped_storage().data_ptr():
        return None
    return int(time.storage_offset() - timesteps.storage_offset())
