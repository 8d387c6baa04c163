"""Correctors: repair predicted values, channel by channel."""

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
"""In a coefficient's name in place of the branch: the coefficient is folded into a layer's weights."""


class Corrector(Protocol):
    """Repairs predicted values."""

    def correction(self, step: Step, stream: int, value: Tensor) -> Correction:
        """The correction of one stream of a site at a reused tick.

        Args:
            step: the tick, branch and site.
            stream: index of the stream.
            value: a tensor with the stream's channels, on its device.
        """

    def tensors(self) -> Iterator[Tensor]:
        """The tensors that it keeps."""


class Affine:
    """x <- gain[tick] * x + shift[tick], for each channel (ERTACache's rectification, CacheQuant's correction).

    For a whole denoiser x is its output. For a site inside it x is the feature, before it is added to the stream.

    Args:
        coefficients: fp32 [ticks, channels], by name (see `coefficient_name`).
        denoiser: name of the denoiser.
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
        """The tick's gain or shift, [channels]; None where there is none."""
        for branch in (step.branch, ALL):
            name = coefficient_name(step.full_name(self.denoiser), branch, stream, kind)
            if name in self.coefficients:
                rows = self.coefficients[name]
                if rows.device != value.device:
                    rows = self.coefficients[name] = rows.to(value.device)
                return rows[step.tick] if step.tick < len(rows) else None
        return None


def coefficient_name(site: str, branch: str, stream: int, kind: str) -> str:
    """The name of a coefficient in a schedule: "transformer/cond/gain", or "transformer/cond/1/gain" of a second stream.

    Args:
        site: its name in the schedule's table.
        branch: a branch's name, `ALL` or `WEIGHTS`.
        stream: index of the stream.
        kind: `GAIN` or `SHIFT`.
    """
    return "/".join([site, branch, *([str(stream)] if stream else []), kind])


def denoiser_of(name: str) -> str:
    """Whose outputs a coefficient of this name corrects."""
    return name.split("/")[0].split(".")[0]


def repairs_among(coefficients: Mapping[str, Tensor], denoiser: str) -> dict[str, Repair]:
    """The gain and the shift of each quantised layer of a denoiser, by the layer's name inside it."""
    layers = {name.split("/")[0] for name in coefficients if f"/{WEIGHTS}/" in name}
    return {
        layer.removeprefix(f"{denoiser}."): (
            coefficients[coefficient_name(layer, WEIGHTS, 0, GAIN)],
            coefficients[coefficient_name(layer, WEIGHTS, 0, SHIFT)],
        )
        for layer in sorted(layers)
    }


def channel_dim(tensor: Tensor) -> int:
    """The dimension of the channels: the last one of [batch, tokens, channels], the second one of larger tensors."""
    return tensor.ndim - 1 if tensor.ndim <= 3 else 1
