"""Influence: how much the denoiser's output at each tick changes later samples and the loop's result, by way of the noise scheduler."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from diffcache.noise_schedulers.fresh_noise import adds_fresh_noise
from diffcache.noise_schedulers.levels import SMALLEST, UNKNOWN, Level
from diffcache.noise_schedulers.quirks import clip_range_of, limits_samples, model_input, next_sample, unit_of
from diffcache.noise_schedulers.trial import begun_anew, copied_to_cpu, nothing_drawn
from diffcache.schedulers.moments import signal_and_noise

IMPULSE = 1e-3
"""In the output of a tick. Steps are linear; it is small all the same, so that it clips nothing, and unclips nothing, of a noise scheduler that clips."""

SPREAD, GUIDED_SPREAD, TURN = 0.8, 0.8, 0.06
"""Predicted samples have the standard deviation `SPREAD` without guidance. At pure noise each unit of guidance adds `GUIDED_SPREAD` times as much; `TURN`
radians from pure noise it adds half of that. On testbeds it is 0.5 to 1.1 without guidance, and 2.2 to 4.8 in the first step at a scale of 5."""

DRAWN, FEWEST = 6400, 16
"""Where samples are clipped, `DRAWN` elements are drawn in all, as many at each timestep, and at least `FEWEST` at each."""

BEYOND = 4.0
"""An element that is clipped is predicted at so many times the limit."""

Matrix = list[list[float]]
"""[timesteps + 1, timesteps]: on each input and, in the last row, on the result."""


class Influence:
    """The influence of each output of one loop on the denoiser's later inputs, and on the loop's result.

    A noise scheduler's step is linear in the output and in the sample, whatever its solver, parametrisation and order
    (except where it clips). So a copy of it goes through the loop once, with an impulse in the output of each timestep,
    each in a channel of its own. The influence of a timestep is what its channel holds later, over the impulse. When
    the sample changes, the denoiser's next outputs change too: the velocities are taken to stay as they are, as those of
    the best denoiser for data of variance one do. Most solvers keep what they have added. But the first stage of a singlestep
    solver changes the second stage's input only, and multistep solvers add more at first, and take some of it back at the next step.

    Where a noise scheduler clips the samples that it predicts, an output moves clipped elements by its part in the noise alone, which
    is several times the whole step. Then elements are clipped by chance, and the root mean square of what they hold is kept beside
    the influence without clipping.

    All methods take indices in the noise scheduler's list of timesteps.

    Args:
        noise_scheduler: right after `set_timesteps`; it is not changed.
        levels: of its timesteps; None: at each the output is the velocity.

    Attributes:
        obstacle: why errors of earlier ticks cannot be corrected: the influence is unknown, or the run turned out to do
            something else than what was measured. None where they can be.
        adds_noise: its steps add fresh noise.
    """

    def __init__(self, noise_scheduler: Any, levels: Sequence[Level] | None = None) -> None:
        self.obstacle: str | None = None
        self.adds_noise = adds_fresh_noise(noise_scheduler)
        self._levels = levels or [UNKNOWN] * len(noise_scheduler.timesteps)
        self._clipping: Any = None
        self._influences: Matrix = [] if self.adds_noise else self._measured(noise_scheduler)
        if self.adds_noise:
            self.obstacle = f"{type(noise_scheduler).__name__} adds noise at its steps"

    @property
    def clips(self) -> bool:
        """Whether predicted samples are clipped. Then steps are not linear, but can be made again (`engine/retracing.py`)."""
        return self._clipping is not None

    def run(self, first: int, count: int) -> Matrix:
        """The influence of so many outputs from `first` on: on the input at each of these timesteps, and on the result.

        Returns:
            [count + 1, count]; empty where there is an obstacle, or one of them is unknown.
        """
        return _part(self._influences, first, count) if self.obstacle is None else []

    def clipped_run(self, first: int, count: int, guidance: float) -> Matrix:
        """The same where predicted samples are clipped: the root mean square over elements, with the sign that it has without clipping.

        Args:
            first, count: as in `run`.
            guidance: its scale, 1 for none; it makes predicted samples larger.

        Returns:
            [count + 1, count]; empty where none are clipped, or the influence is unknown.
        """
        limit = None if self._clipping is None else clip_range_of(self._clipping)
        if limit is None or any(level.angle is None for level in self._levels):
            return []
        shares = [math.erfc(limit / _spread(level, guidance) / math.sqrt(2)) for level in self._levels]
        sizes = _clipped_responses(self._clipping, self._levels, limit, shares)
        found: Matrix = torch.copysign(
            sizes, torch.tensor(self._influences, dtype=sizes.dtype, device="cpu")
        ).tolist()
        return _part(found, first, count) if _is_finite(found) else []

    def ratio(self, index: int, other: int) -> float | None:
        """The influence of the output at `index`, over that of the output at `other`; None where there is an obstacle."""
        known = self._influences[-1] if self._influences else []
        if self.obstacle is not None or not (0 <= index < len(known) and 0 <= other < len(known)):
            return None
        ratio = known[index] / known[other] if known[other] else math.inf
        return ratio if math.isfinite(ratio) else None

    def _measured(self, noise_scheduler: Any) -> Matrix:
        """The influence on each input and on the result; empty if a copy cannot be stepped, or its steps draw or overflow."""
        name = type(noise_scheduler).__name__
        found: Matrix = []
        generator = torch.get_rng_state()
        try:
            found = _impulse_responses(noise_scheduler, self._levels)
        except Exception as error:  # noqa: BLE001 - somebody else's step may ask for anything; the report says so
            self.obstacle = f"{name} cannot be tried out ({type(error).__name__}: {error})"
        # A step has drawn that was not tried above, or another thread has. Only if it was a step, the generator is put back.
        if not torch.equal(generator, torch.get_rng_state()) and _draws(noise_scheduler, self._levels):
            torch.set_rng_state(generator)
            self.adds_noise = True
            return []
        if not _is_finite(found):
            self.obstacle = f"{name} makes numbers of these timesteps that are not finite"
            return []
        limits = limits_samples(noise_scheduler)
        if self.obstacle is None and limits is not None:
            self.obstacle = f"{name} {limits}"
            if clip_range_of(noise_scheduler) is not None:
                self._clipping = copied_to_cpu(noise_scheduler)
        return found


def _draws(noise_scheduler: Any, levels: Sequence[Level]) -> bool:
    """Whether some step draws random numbers."""
    with nothing_drawn() as generator, suppress(Exception):
        _impulse_responses(noise_scheduler, levels)
    return generator.was_used


def _is_finite(rows: Matrix) -> bool:
    return all(map(math.isfinite, chain.from_iterable(rows)))


def _spread(level: Level, guidance: float) -> float:
    """The standard deviation of samples that are predicted there."""
    return SPREAD * (1 + GUIDED_SPREAD * (guidance - 1) / (1 + (level.turned or 0.0) / TURN))


def _part(rows: Matrix, first: int, count: int) -> Matrix:
    """Of what was measured in the whole list the part of a run, [count + 1, count]; empty where it is longer."""
    last = first + count
    return [row[first:last] for row in (*rows[first:last], rows[-1])] if last < len(rows) else []


def _clipped_responses(
    noise_scheduler: Any, levels: Sequence[Level], limit: float, shares: Sequence[float]
) -> Tensor:
    """`_impulse_responses`, in the root mean square over elements of which some are clipped at each step, [timesteps + 1, timesteps].

    Args:
        noise_scheduler, levels: see `Influence`; levels whose angles are known.
        limit: on predicted samples.
        shares: of elements that are clipped at each timestep.
    """
    elements = max(DRAWN // len(levels), FEWEST)
    drawn = torch.rand(len(levels), elements, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
    beyond = BEYOND * limit * (drawn < torch.tensor(shares, device="cpu")[:, None]).double()
    return torch.stack([held.square().mean(dim=0).sqrt() for held in _held(noise_scheduler, levels, beyond)])


def _impulse_responses(noise_scheduler: Any, levels: Sequence[Level]) -> Matrix:
    """What a unit impulse in the output of each timestep makes of the input at each timestep, and of the result."""
    return [held[0].tolist() for held in _held(noise_scheduler, levels)]


def _held(noise_scheduler: Any, levels: Sequence[Level], clean: Tensor | None = None) -> Iterator[Tensor]:
    """What a unit impulse in the output of each timestep makes of elements: of the input at each timestep, then of the result, in standard deviations.

    Args:
        noise_scheduler, levels: see `Influence`.
        clean: the sample that is predicted of each element at each timestep, before the impulses, [timesteps, elements]; None: 0, of one element.

    Yields:
        [elements, timesteps]
    """
    copied = begun_anew(copied_to_cpu(noise_scheduler))
    times, elements = copied.timesteps, 1 if clean is None else clean.shape[1]
    sample = torch.zeros(elements, len(times) + 1, 1, 1, dtype=torch.float64, device="cpu")
    for tick, (time, level) in enumerate(zip(times, levels, strict=True)):
        seen = model_input(copied, sample, time)
        yield _over_impulse(seen)
        output = level.parametrisation.of_input * seen
        if clean is not None:
            predicted = clean[tick, :, None, None, None]
            output += level.parametrisation.of_velocity * _velocity(seen[:, -1:], predicted, level)
        output[:, tick] += IMPULSE
        sample = next_sample(copied, output, time, sample)
    yield _over_impulse(sample) / unit_of(copied)


def _over_impulse(sample: Tensor) -> Tensor:
    """What channels hold beyond the last one, which gets no impulse, over the impulse: [elements, timesteps] of [elements, timesteps + 1, 1, 1]."""
    return (sample[:, :-1] - sample[:, -1:]).flatten(1) / IMPULSE


def _velocity(seen: Tensor, clean: Tensor, level: Level) -> Tensor:
    """That predicts a clean sample of an input x = signal * clean + noise * (clean + v)."""
    assert level.angle is not None
    signal, noise = signal_and_noise(level.angle, level.is_flow)
    return (seen - (signal + noise) * clean) / max(noise, SMALLEST)
