"""Correctors: repair what a predictor gives, channel by channel."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import Tensor

from diffcache.kernels.extrapolate import NO_CORRECTION, Correction
from diffcache.schedulers.schedule import ALL
from diffcache.schedulers.steps import MODEL, Step

Repair = tuple[Tensor, Tensor]
"""Gain and shift of a layer's output channels, float32 [channels] each; they become part of the layer's weights."""

GAIN, SHIFT = "gain", "shift"

WEIGHTS = "weights"
"""Stands in a coefficient's name instead of a branch where it repairs a layer's weights."""


class Corrector(Protocol):
    """Gives the correction of one stream of a site at a reused tick; `value` has its channels and its device."""

    def correction(self, step: Step, stream: int, value: Tensor) -> Correction: ...

    def tensors(self) -> Iterator[Tensor]: ...


class Affine:
    """x <- gain[tick] * x + shift[tick], per channel (ERTACache's rectification, CacheQuant's correction).

    Of a whole denoiser x is its output; of a site inside it the feature, before it is added to the stream.

    Args:
        coefficients: by name (see `coefficient_name`), fp32 [ticks, channels].
        denoiser: name of the denoiser that they belong to.
    """

    def __init__(self, coefficients: Mapping[str, Tensor], denoiser: str) -> None:
        self.coefficients = dict(coefficients)
        self.denoiser = denoiser

    def correction(self, step: Step, stream: int, value: Tensor) -> Correction:
        gain, shift = (self._row(step, stream, kind, value) for kind in (GAIN, SHIFT))
        if gain is None and shift is None:
            return NO_CORRECTION
        return Correction(gain, shift, channel_dim=channel_dim(value), of_value=step.kind == MODEL)

    def tensors(self) -> Iterator[Tensor]:
        yield from self.coefficients.values()

    def _row(self, step: Step, stream: int, kind: str, value: Tensor) -> Tensor | None:
        for branch in (step.branch, ALL):
            name = coefficient_name(step.full_name(self.denoiser), branch, stream, kind)
            if name in self.coefficients:
                rows = self.coefficients[name]
                if rows.device != value.device:
                    rows = self.coefficients[name] = rows.to(value.device)
                return rows[step.tick] if step.tick < len(rows) else None
        return None


def coefficient_name(site: str, branch: str, stream: int, kind: str) -> str:
    """A correction's name in a schedule: "transformer/cond/gain", of a second stream "transformer/cond/1/gain".

    The site is named as in the schedule's table.
    """
    return "/".join([site, branch, *([str(stream)] if stream else []), kind])


def channel_dim(tensor: Tensor) -> int:
    """The dimension of the channels: the last one of tokens [batch, tokens, channels], else the second."""
    return tensor.ndim - 1 if tensor.ndim <= 3 else 1
