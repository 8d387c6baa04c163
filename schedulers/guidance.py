"""Guidance: how a pipeline makes one output of what its two passes return."""

from dataclasses import dataclass

import torch
from torch import Tensor

TYPICAL_SCALE = 3.0
"""A scale of guidance, where nothing tells it."""


@dataclass(frozen=True)
class Guidance:
    """Classifier-free guidance (arXiv 2207.12598, equation 6): u + scale * (c - u) of conditional c and unconditional u.

    Attributes:
        scale: the largest where a call has several; 1 for none; None where nothing tells it.
        norm_along: the guided output is scaled to the norm of the conditional one along this dimension; None: it is not.
        is_rescaled: it is scaled nearer to the standard deviation of the conditional one (arXiv 2305.08891, equation 15).
    """

    scale: float | None = None
    norm_along: int | None = None
    is_rescaled: bool = False

    @property
    def is_linear(self) -> bool:
        """Whether weighted sums of passes make the weighted sum of guided outputs."""
        return self.norm_along is None and not self.is_rescaled

    @property
    def counted(self) -> float:
        """The scale that a method counts with, where it may be unknown: 1 for none."""
        return TYPICAL_SCALE if self.scale is None else max(self.scale, 1.0)

    def of(self, conditional: Tensor, unconditional: Tensor) -> Tensor:
        """The guided output of two, [batch, ...]."""
        mixed = torch.lerp(unconditional, conditional, self.counted)
        if self.norm_along is None:
            return mixed
        own, wanted = (
            torch.linalg.vector_norm(each, dim=self.norm_along, keepdim=True) for each in (mixed, conditional)
        )
        kept: Tensor = mixed * (wanted / own.clamp_min(torch.finfo(own.dtype).tiny))
        return kept


UNTOLD = Guidance()
"""Where nothing tells it."""
