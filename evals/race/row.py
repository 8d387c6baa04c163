"""One measurement of the race."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from diffcache.evals.metrics.fidelity import psnr, ssim
from diffcache.evals.metrics.media import eight_bit

ROUNDING = 58.9
"""PSNR in dB of a picture to itself rounded to 8 bits. What is above is shown as this: nobody can see the difference."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A contender at one setting, on the samples of one part.

    Attributes:
        contender: its full name.
        options: the setting.
        part: which samples, see `splits.PARTS`.
        compute: floating-point operations in the denoiser, as a share of the full run's.
        psnr: of 8-bit pictures to the full run's in dB, for each sample; at most `ROUNDING`.
        truth: the same to the pictures of 1000 steps, for the first samples; empty where these were not rendered.
        changed: share of pixels that differ from the full run's in 8 bits, for each sample.
        ssim: to the full run, for each sample.
        loop_time: processor time of the denoising loop over the full run's, as it came: not measured in turns.
    """

    contender: str
    options: dict[str, Any]
    part: str
    compute: float
    psnr: list[float]
    truth: list[float]
    changed: list[float]
    ssim: list[float]
    loop_time: float

    @property
    def mean_psnr(self) -> float:
        return sum(self.psnr) / len(self.psnr)

    @property
    def mean_truth(self) -> float:
        return sum(self.truth) / len(self.truth)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Reference:
    """What the pictures of one part are compared with, in 0..1: the full run's, and those of 1000 steps or None."""

    full: Tensor
    truth: Tensor | None

    def figures(self, pictures: Tensor) -> dict[str, list[float]]:
        """The figures of a row."""
        return {
            "psnr": psnr_in_8_bits(pictures, self.full),
            "truth": [] if self.truth is None else psnr_in_8_bits(pictures[: len(self.truth)], self.truth),
            "changed": _rounded(changed(pictures, self.full), 4),
            "ssim": _rounded(ssim(_seen(pictures), _seen(self.full)), 4),
        }


def psnr_in_8_bits(pictures: Tensor, reference: Tensor) -> list[float]:
    """Of each sample, in dB, at most `ROUNDING`; pictures [N, ...] in 0..1."""
    return _rounded(psnr(_seen(pictures), _seen(reference)).clamp_max(ROUNDING), 2)


def changed(pictures: Tensor, reference: Tensor) -> Tensor:
    """Share of pixels that differ in 8 bits, [N]; pictures [N, ..., channels, height, width] in 0..1."""
    differs = (eight_bit(pictures) != eight_bit(reference)).any(-3)
    return differs.flatten(1).double().mean(1)


def _seen(pictures: Tensor) -> Tensor:
    return eight_bit(pictures).float() / 255


def _rounded(values: Tensor, digits: int) -> list[float]:
    return [round(float(value), digits) for value in values.to(torch.float64)]
