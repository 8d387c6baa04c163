"""Moments: how what a schedule would reuse relates to the truth, tick by tick, summed up over calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diffcache.engine.observers import Observer
from diffcache.prediction.correctors import GAIN, SHIFT, channel_dim, coefficient_name
from diffcache.schedulers.signals import EPS
from diffcache.schedulers.steps import MODEL, Step

SHRINKAGE = 8.0
"""n0 of the fit: coefficients from n samples shrink towards no correction by n / (n + n0)."""
LEAST_SHARE = 0.2
"""Of a reused step's nominal length: shorter ones hardly move."""


@dataclass
class Sums:
    """Running sums of a prediction u and the truth y, per channel, fp64."""

    n: float = 0.0
    u: Tensor | float = 0.0
    y: Tensor | float = 0.0
    uu: Tensor | float = 0.0
    uy: Tensor | float = 0.0
    samples: int = 0

    def add(self, u: Tensor, y: Tensor) -> None:
        channels = channel_dim(u)
        dims = [d for d in range(u.ndim) if d != channels]
        self.n += u.numel() / u.shape[channels]
        self.u, self.y = self.u + u.sum(dims), self.y + y.sum(dims)
        self.uu, self.uy = self.uu + (u * u).sum(dims), self.uy + (u * y).sum(dims)
        self.samples += len(u)

    @property
    def trust(self) -> float:
        return self.samples / (self.samples + SHRINKAGE)

    def fit(self) -> tuple[Tensor, Tensor]:
        """gain = Cov(u, y) / Var(u) and shift = mean y - gain * mean u, per channel, shrunk towards no correction.

        This is the linearised ERTACache rectification; its sigmoid cancels.
        """
        u, y = torch.as_tensor(self.u) / self.n, torch.as_tensor(self.y) / self.n
        variance = torch.as_tensor(self.uu) / self.n - u * u
        covariance = torch.as_tensor(self.uy) / self.n - u * y
        gain = covariance / (variance + EPS)
        return 1 + self.trust * (gain - 1), self.trust * (y - gain * u)


@dataclass
class Moments(Observer):
    """Compares predictions with the truth as a schedule is run in shadow, keeping sums only.

    Of a whole denoiser values are compared (v), of a place inside it features (what a block adds to its streams): those
    are what its corrections are of.

    Attributes:
        closed: see `Observer`.
    """

    closed: bool = False
    shadow: bool = True
    sums: dict[tuple[str, str, int, int], Sums] = field(default_factory=dict)
    ratios: dict[int, list[float]] = field(default_factory=dict)
    _outputs: dict[tuple[str, str], tuple[int, Tensor]] = field(default_factory=dict)

    def predicted(
        self,
        denoiser: str,
        step: Step,
        guess: Sequence[Tensor],
        truth: Sequence[Tensor],
        features: Sequence[Tensor],
    ) -> Sequence[Tensor]:
        place = step.full_name(denoiser)
        for stream, (u, y, feature) in enumerate(zip(guess, truth, features, strict=True)):
            if y.is_floating_point():
                sums = self.sums.setdefault((place, step.branch, stream, step.tick), Sums())
                sums.add(*_related(step, u, y, feature))
        if step.kind == MODEL:
            self._compare(place, step, guess[0], truth[0])
        return super().predicted(denoiser, step, guess, truth, features)

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        if step.kind == MODEL:
            self._outputs[step.full_name(denoiser), step.branch] = step.tick, outputs[0].clone()

    def coefficients(self, ticks: int) -> dict[str, Tensor]:
        """gain and shift, fp32 [ticks, channels], by name; nothing is corrected at ticks that are computed."""
        found: dict[str, Tensor] = {}
        for (place, branch, stream, tick), sums in self.sums.items():
            for kind, row, empty in zip((GAIN, SHIFT), sums.fit(), (1.0, 0.0), strict=True):
                name = coefficient_name(place, branch, stream, kind)
                table = found.setdefault(name, torch.full((ticks, len(row)), empty))
                table[tick] = row.float()
        return found

    def shares(self, ticks: int) -> list[float]:
        """phi = 1 - mean|v~ - v| / mean|v_s - v_{s-1}| of each reused tick, at least 0.2; 1 at the others and the last."""
        shares = [1.0] * ticks
        for tick, ratios in self.ratios.items():
            if tick < ticks - 1:
                shares[tick] = min(max(1 - sum(ratios) / len(ratios), LEAST_SHARE), 1.0)
        return shares

    def projections(self, ticks: int) -> list[float]:
        """phi that minimises |phi v~ - v|^2 over all channels of the first stream, in 0.2..1, shrunk towards 1; 1 at the
        others and the last. What is left for it where the affine maps have been fitted is next to nothing."""
        shares = [1.0] * ticks
        for tick in {tick for _, _, stream, tick in self.sums if stream == 0 and tick < ticks - 1}:
            sums = [found for (_, _, stream, at), found in self.sums.items() if (stream, at) == (0, tick)]
            uy, uu = (
                sum(float(torch.as_tensor(getattr(s, name)).sum()) for s in sums) for name in ("uy", "uu")
            )
            shrunk = 1 + sums[0].trust * (uy / (uu + EPS) - 1)
            shares[tick] = min(max(shrunk, LEAST_SHARE), 1.0)
        return shares

    def _compare(self, place: str, step: Step, guess: Tensor, truth: Tensor) -> None:
        """Notes the error of a prediction relative to how far the output has moved since the tick before."""
        tick, before = self._outputs.get((place, step.branch), (-1, truth))
        if tick == step.tick - 1:
            ratio = (guess - truth).abs().mean() / ((truth - before).abs().mean() + EPS)
            self.ratios.setdefault(step.tick, []).append(float(ratio))


@dataclass
class InOrder(Moments):
    """Fits each reused tick on runs that all earlier ticks' corrections have gone into (a sequential closed loop).

    What is predicted is repaired on the spot with the fit to all that has been summed up so far, this call included; so one
    pass over the calls is enough, and one call of many samples is exact.
    """

    def predicted(
        self,
        denoiser: str,
        step: Step,
        guess: Sequence[Tensor],
        truth: Sequence[Tensor],
        features: Sequence[Tensor],
    ) -> Sequence[Tensor]:
        super().predicted(denoiser, step, guess, truth, features)
        repaired = list(guess)
        for stream, (u, y, feature) in enumerate(zip(guess, truth, features, strict=True)):
            sums = self.sums.get((step.full_name(denoiser), step.branch, stream, step.tick))
            if sums is not None:
                shape = [1] * u.ndim
                shape[channel_dim(u)] = -1
                gain, shift = (row.reshape(shape) for row in sums.fit())
                reused, _ = _related(step, u, y, feature)
                repaired[stream] = (u + (gain - 1) * reused + shift).to(u.dtype)
        return repaired


def _related(step: Step, u: Tensor, y: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
    """The prediction and the truth that a correction relates, fp64: values of a whole denoiser, features of a place in it."""
    u, y, feature = u.double(), y.double(), feature.double()
    return (u, y) if step.kind == MODEL else (u - y + feature, feature)
