"""Influence: how much the denoiser's output at each tick changes later samples and the loop's result, by way of the noise scheduler."""

import copy
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from diffcache.noise_schedulers.generator import generator_put_back
from diffcache.noise_schedulers.levels import VELOCITY, Parametrisation
from diffcache.noise_schedulers.quirks import limits_samples, model_input, next_sample

IMPULSE = 1e-3
"""In the output of a tick. Steps are linear; it is small all the same, so that nothing of a noise scheduler that clips is clipped."""


class Influence:
    """The influence of each output of one loop on the denoiser's later inputs, and on the loop's result.

    A noise scheduler's step is linear in the output and in the sample, whatever its solver, parametrisation and order
    (except where it clips). So a copy of it goes through the loop once, with an impulse in the output of each timestep,
    each in a channel of its own. The influence of a timestep is what its channel holds later, over the impulse. When
    the sample changes, the denoiser's next outputs change too: the velocities are taken to stay as they are, as those of
    the best denoiser for data of variance one do. Most solvers keep what they have added. But the first stage of a singlestep
    solver changes the second stage's input only, and multistep solvers add more at first, and take some of it back at the next step.

    All methods take indices in the noise scheduler's list of timesteps.

    Args:
        noise_scheduler: right after `set_timesteps`; it is not changed.
        outputs: what the denoiser's output is at each of its timesteps; None: the velocity.

    Attributes:
        obstacle: why errors of earlier ticks cannot be corrected: the influence is unknown, or the run turned out to do
            something else than what was measured. None where they can be.
    """

    def __init__(self, noise_scheduler: Any, outputs: Sequence[Parametrisation] | None = None) -> None:
        self.obstacle: str | None = None
        self._influences = self._measured(noise_scheduler, outputs)

    def run(self, first: int, count: int) -> list[list[float]]:
        """The influence of so many outputs from `first` on: on the input at each of these timesteps, and on the result.

        Returns:
            [count + 1, count]; empty where there is an obstacle, or one of them is unknown.
        """
        last = first + count
        if self.obstacle is not None or last >= len(self._influences):
            return []
        return [row[first:last] for row in (*self._influences[first:last], self._influences[-1])]

    def ratio(self, index: int, other: int) -> float | None:
        """The influence of the output at `index`, over that of the output at `other`; None where there is an obstacle."""
        known = self._influences[-1] if self._influences else []
        if self.obstacle is not None or not (0 <= index < len(known) and 0 <= other < len(known)):
            return None
        ratio = known[index] / known[other] if known[other] else math.inf
        return ratio if math.isfinite(ratio) else None

    def _measured(self, noise_scheduler: Any, outputs: Sequence[Parametrisation] | None) -> list[list[float]]:
        """The influence on each input and on the result; empty if a copy cannot be stepped, and if its steps add noise or overflow."""
        name = type(noise_scheduler).__name__
        found: list[list[float]] = []
        with generator_put_back() as generator:
            try:
                found = _impulse_responses(copied_to_cpu(noise_scheduler), outputs)
            except Exception as error:  # noqa: BLE001 - somebody else's step may ask for anything; the report says so
                self.obstacle = f"{name} cannot be tried out ({type(error).__name__}: {error})"
        if generator.was_used:
            self.obstacle = f"{name} adds noise at its steps"
            return []
        if not all(map(math.isfinite, chain.from_iterable(found))):
            self.obstacle = f"{name} makes numbers of these timesteps that are not finite"
            return []
        limit = limits_samples(noise_scheduler)
        if self.obstacle is None and limit is not None:
            self.obstacle = f"{name} {limit}"
        return found


def _impulse_responses(noise_scheduler: Any, outputs: Sequence[Parametrisation] | None) -> list[list[float]]:
    """What a unit impulse in the output of each timestep makes of the input at each timestep, and of the result."""
    times = noise_scheduler.timesteps
    outputs = outputs or [VELOCITY] * len(times)
    sample = torch.zeros(1, len(times), 1, 1, dtype=torch.float64, device="cpu")
    found = []
    for tick, (time, at) in enumerate(zip(times, outputs, strict=True)):
        seen = model_input(noise_scheduler, sample, time)
        found.append(seen)
        output = at.of_input * seen
        output[0, tick] += IMPULSE
        sample = next_sample(noise_scheduler, output, time, sample)
    responses: list[list[float]] = (torch.stack([*found, sample]).flatten(1) / IMPULSE).tolist()
    return responses


def copied_to_cpu(noise_scheduler: Any) -> Any:
    """A copy whose tensors are on the CPU, so that no step waits for a device."""
    copied = copy.deepcopy(noise_scheduler)
    for name, value in vars(copied).items():
        if isinstance(value, Tensor):
            setattr(copied, name, value.cpu())
    return copied
