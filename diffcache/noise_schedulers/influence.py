"""How far each tick's output moves what the loop returns, as the noise scheduler passes it on."""

import copy
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from diffcache.noise_schedulers.quirks import answer_of

IMPULSE = 1e-3
"""Small, so that no clipping of predicted samples sets in."""

AMPLIFIED = 3.2
"""Log of by what a denoiser amplifies an error at a run's first tick until its end; just below the 3.4 to 4.7 that were measured
on the testbeds (scripts/measure/amplification.py)."""


class Influence:
    """Of the outputs of one loop, by place in the noise scheduler's list of timesteps.

    A noise scheduler's step is linear in the output and in the sample, whatever its solver, parametrisation and order (but for
    clipping). So a copy of it goes through the loop, at each timestep with an impulse of its own, and how far each gets is read
    from the end. What the denoiser answers to a changed sample on the way is what the best one for data of variance one would.

    Args:
        noise_scheduler: right after `set_timesteps`; it is left alone.
        sigmas: the noise level at each of its timesteps; None where unknown: then nothing is answered.

    Attributes:
        obstacle: why nothing is known; None otherwise.
    """

    def __init__(self, noise_scheduler: Any, sigmas: Sequence[float] | None = None) -> None:
        self.obstacle: str | None = None
        self._moves = self._measured(noise_scheduler, sigmas)
        self._sizes = _amplified(self._moves)
        self._sums = [0.0, *accumulate(self._sizes)]

    def ratio(self, place: int, to: int) -> float | None:
        """By what an output at `place` moves the result, over what one at `to` does; None where that is unknown."""
        if not (0 <= place < len(self._moves) and 0 <= to < len(self._moves)):
            return None
        ratio = self._moves[place] / self._moves[to] if self._moves[to] else math.inf
        return ratio if math.isfinite(ratio) else None

    def weight(self, place: int, run: range) -> float:
        """How much an error of the output at `place` matters to the result, over the mean of a run's; 1 where that is unknown.

        Errors change what later outputs are made of, and real denoisers answer to that by more than the best one for data of
        variance one does: by a constant factor at each tick.
        """
        known = run[: max(len(self._sizes) - run.start, 0)]
        total = self._sums[known.stop] - self._sums[known.start] if known else 0.0
        return self._sizes[place] * len(known) / total if place in known and 0 < total < math.inf else 1.0

    def forget(self, why: str) -> None:
        """Nothing is known any more."""
        self.obstacle, self._moves, self._sizes = why, [], []

    def _measured(self, noise_scheduler: Any, sigmas: Sequence[float] | None) -> list[float]:
        """Of each timestep; none if a copy cannot be stepped, or draws noise: outputs then lie on no curve."""
        kind = type(noise_scheduler).__name__
        before = torch.get_rng_state()
        moves: list[float] = []
        try:
            moves = _passed_on(_copied(noise_scheduler), sigmas)
        except Exception as error:  # noqa: BLE001 - somebody else's step may ask for anything; the report says so
            self.obstacle = f"{kind} cannot be tried out ({type(error).__name__}: {error})"
        if torch.equal(before, torch.get_rng_state()):
            return moves
        torch.set_rng_state(before)  # only now: other threads draw from this generator too
        self.obstacle = self.obstacle or f"{kind} adds noise at its steps"
        return []


def _passed_on(noise_scheduler: Any, sigmas: Sequence[float] | None) -> list[float]:
    """What becomes of an impulse at each timestep."""
    ticks = len(noise_scheduler.timesteps)
    answers = [0.0] * ticks if sigmas is None else [answer_of(noise_scheduler, sigma) for sigma in sigmas]
    sample = torch.zeros(1, ticks, 1, 1, dtype=torch.float64, device="cpu")
    for tick, time in enumerate(noise_scheduler.timesteps):
        output = answers[tick] * _seen(noise_scheduler, sample, time)
        output[0, tick] += IMPULSE
        sample = _stepped(noise_scheduler, output, time, sample)
    return [float(move) / IMPULSE for move in sample.flatten()]


def _amplified(moves: Sequence[float]) -> list[float]:
    """Their sizes as the denoiser amplifies them."""
    return [abs(move) * math.exp(-AMPLIFIED * i / len(moves)) for i, move in enumerate(moves)]


def _copied(noise_scheduler: Any) -> Any:
    """On the CPU, where no step waits for a device."""
    copied = copy.deepcopy(noise_scheduler)
    for name, value in vars(copied).items():
        if isinstance(value, Tensor):
            setattr(copied, name, value.cpu())
    return copied


def _seen(noise_scheduler: Any, sample: Tensor, time: Tensor) -> Tensor:
    """What the denoiser is given of a sample."""
    if not hasattr(noise_scheduler, "scale_model_input"):
        return sample
    seen: Tensor = noise_scheduler.scale_model_input(sample, time)
    return seen


def _stepped(noise_scheduler: Any, output: Tensor, time: Tensor, sample: Tensor) -> Tensor:
    """One step; by its class, because an instance's `step` may have been wrapped around the original."""
    stepped: Tensor = type(noise_scheduler).step(noise_scheduler, output, time, sample)[0]
    return stepped.double()
