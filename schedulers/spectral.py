"""SeaCache's signal (arXiv 2602.18993): the change of what a Wiener filter leaves of the noisy picture."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from diffcache.kernels.relative_l1 import relative_l1
from diffcache.schedulers.signals import Signal

NEAR_ZERO = 1e-16
"""Added to divisors, as in the published code."""

LEAST = 1e-6
"""The least share of signal and of noise."""


class SpectralDrift(Signal):
    """mean|f_s - f_{s-1}| / mean|f_{s-1}|, where f_s are the latents at tick s, filtered for the noise level there.

    Along each axis of the picture the filter multiplies a frequency by a P / (a^2 P + b^2), with P = 1 / |frequency|^power the power
    that pictures have there, a the share of the signal and b that of the noise; the product over the axes is scaled to mean 1.
    Published for flow matching, where a = 1 - sigma and b = sigma. A common factor of both drops out by the scaling, so cosine and sine
    of a tick's angle give the same there, and do for every noise scheduler.

    Args:
        angles: of the ticks; None: unknown, and no signal there.
        power: how fast pictures lose power with the frequency.
    """

    def __init__(self, angles: Sequence[float | None], power: float) -> None:
        self.angles, self.power = list(angles), power
        self.tick = 0
        self.previous: list[Tensor] = []
        self.now: list[Tensor] = []

    def measure(self, latents: Sequence[Tensor]) -> Tensor | None:
        self.now = self._filtered(latents)
        if not self.now or not self.previous:
            return None
        return torch.stack([relative_l1(x, y) for x, y in zip(self.now, self.previous, strict=True)])

    def arrived(self, latents: Sequence[Tensor]) -> None:
        self.previous = self.now or self._filtered(latents)
        self.now = []
        self.tick += 1

    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Nothing is kept of outputs."""

    def held(self) -> Iterator[Tensor]:
        yield from self.previous

    def _filtered(self, latents: Sequence[Tensor]) -> list[Tensor]:
        angle = self.angles[self.tick] if self.tick < len(self.angles) else None
        return [] if angle is None else [filtered(latent, angle, self.power) for latent in latents]


def filtered(latent: Tensor, angle: float, power: float) -> Tensor:
    """A latent without what its noise level hides, fp32.

    Args:
        latent: [batch, channels, ...axes], or tokens [batch, tokens, channels], whose grid is taken to be square if it can be.
        angle: atan2(noise, signal).
        power: of the frequency by which pictures' power falls.
    """
    axes = _as_grid(latent.float())
    dims = tuple(range(2, axes.ndim))
    signal, noise = max(math.cos(angle), LEAST), max(math.sin(angle), LEAST)
    gain = torch.ones((), device=latent.device)
    for dim in dims:
        frequency = torch.fft.fftfreq(axes.shape[dim], device=latent.device)
        clean = 1 / (frequency.abs() ** power + NEAR_ZERO)
        along = signal * clean / (signal**2 * clean + noise**2)
        gain = gain * along.view([-1 if i == dim else 1 for i in range(2, axes.ndim)])
    left: Tensor = torch.fft.ifftn(torch.fft.fftn(axes, dim=dims) * (gain / gain.mean()), dim=dims).real
    return left


def _as_grid(latent: Tensor) -> Tensor:
    """[batch, channels, ...axes]."""
    if latent.ndim > 3:
        return latent
    if latent.ndim < 3:
        return latent.unsqueeze(1)
    channels = latent.transpose(1, 2)
    side = math.isqrt(channels.shape[2])
    square = side**2 == channels.shape[2]
    return channels.reshape(*channels.shape[:2], side, side) if square else channels
