"""Signals: the scalars by which adaptive cache schedulers decide, measured without reading the device."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from diffcache.kernels.relative_l1 import mean_abs, relative_l1, secant_means

EPS = 1e-8
"""Added to divisors, so that a relative change of zeros is not a division by zero."""


class Signal(ABC):
    """Estimates how far the denoiser's output has moved, from tensors that are known before it is computed."""

    @abstractmethod
    def measure(self, latents: Sequence[Tensor]) -> Tensor | None:
        """The expected relative change of the output since the tick before, fp32 [streams]; None without history."""

    @abstractmethod
    def arrived(self, latents: Sequence[Tensor]) -> None:
        """Called at every tick, computed or not, after `measure`."""

    @abstractmethod
    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Called at every computed tick, after `arrived`."""

    @abstractmethod
    def held(self) -> Iterator[Tensor]:
        """The tensors that the signal keeps."""


class SecantGain(Signal):
    """EasyCache's signal (arXiv 2507.02860): k * mean|x_s - x_{s-1}| / mean|v_c|.

    x is the denoiser's input, v its output, and k = mean|v_c - v_p| / mean|x_c - x_p| the secant between the last two
    computed ticks c and p. In a sequence of tokens only those count whose input changes: editing models get the pictures to edit
    as further tokens, which stay the same, and their outputs are not used.

    Two things differ from the published code, which divides by zero there: divisors have an epsilon, and a repeated input
    keeps the old k, or gives NaN, which computes, where there is none.
    """

    def __init__(self) -> None:
        self.previous: list[Tensor] = []
        self.latents: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.output_size: Tensor | None = None
        self.gain: Tensor | None = None

    def measure(self, latents: Sequence[Tensor]) -> Tensor | None:
        if self.gain is None or self.output_size is None:
            return None
        moved = torch.stack([mean_abs(x, y) for x, y in zip(latents, self.previous, strict=True)])
        return self.gain * moved / (self.output_size + EPS)

    def arrived(self, latents: Sequence[Tensor]) -> None:
        self.previous = [x.clone() for x in latents]  # pipelines may step their latents in place

    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        if self.outputs:
            pairs = zip(latents, self.latents, outputs, self.outputs, strict=True)
            means = torch.stack([secant_means(x, y, *_generated(x, y, v, w)) for x, y, v, w in pairs])
            rise, self.output_size, run = means.unbind(-1)
            known = torch.full_like(run, torch.nan) if self.gain is None else self.gain
            self.gain = torch.where(run > 0, rise / (run + EPS), known)
        else:
            self.output_size = torch.stack([mean_abs(v) for v in outputs])
        self.latents = self.previous  # `arrived` has just copied this tick's latents
        self.outputs = [v.clone() for v in outputs]

    def held(self) -> Iterator[Tensor]:
        yield from self.previous
        if self.latents is not self.previous:
            yield from self.latents
        yield from self.outputs
        yield from (scalar for scalar in (self.gain, self.output_size) if scalar is not None)


class Drift(Signal):
    """The relative change of the tensors that are watched: f(mean|x - y| / mean|y|).

    Args:
        since: whether y is x at the "previous" tick (TeaCache) or at the last "computed" one (FBCache).
        rescale: coefficients of the polynomial f, highest power first; empty: f(d) = d.
    """

    def __init__(self, since: Literal["previous", "computed"], rescale: Sequence[float] = ()) -> None:
        self.since = since
        self.rescale = tuple(rescale)
        self.reference: list[Tensor] = []

    def measure(self, latents: Sequence[Tensor]) -> Tensor | None:
        if not self.reference:
            return None
        pairs = zip(latents, self.reference, strict=True)
        drift = torch.stack([relative_l1(x, y) for x, y in pairs])
        return self._rescaled(drift) if self.rescale else drift

    def arrived(self, latents: Sequence[Tensor]) -> None:
        if self.since == "previous":
            self.reference = [x.clone() for x in latents]

    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        if self.since == "computed":
            self.reference = [x.clone() for x in latents]

    def held(self) -> Iterator[Tensor]:
        yield from self.reference

    def _rescaled(self, drift: Tensor) -> Tensor:
        value = torch.zeros_like(drift)
        for coefficient in self.rescale:
            value = value * drift + coefficient
        return value


def _generated(x: Tensor, x_past: Tensor, v: Tensor, v_past: Tensor) -> tuple[Tensor, Tensor]:
    """Both outputs [batch, tokens, channels], with zeros for tokens whose input x has not changed, unless no input has."""
    if x.ndim != 3 or v.shape[:2] != x.shape[:2]:
        return v, v_past
    changed = (x != x_past).any(-1, keepdim=True)
    changed |= ~changed.any()
    return torch.where(changed, v, 0), torch.where(changed, v_past, 0)
