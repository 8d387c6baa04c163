"""Guidance: how a pipeline makes one output of what its two passes return."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

TYPICAL_SCALE = 3.0
"""The scale of guidance that is assumed where nothing tells it."""

TYPICAL_DISTANCE = 0.63
"""How far apart the velocities of both passes are at the first tick, as a fraction of the conditional one: the median over eleven testbeds (0.42 to 0.71)."""

UNTELLING = 1.75
"""What the first tick shows counts where it is this many times off the scale. On the testbeds with their own prompts it is up to 1.6 times off (dit), and plans are
as good by the scale or better; denoisers of pixels on which nothing was tuned are 2.1 times off and more, and plans are better by what is shown."""

KEEPING_NORM = 0.5
"""Guidance that keeps the norm of the conditional output counts as its strength raised to this power: velocities change less near pure noise, and
answer less to errors of the sample. Chosen on sd3, sana and wan, whose guidance was made to keep the norm."""


@dataclass(frozen=True)
class Guidance:
    """Classifier-free guidance (arXiv 2207.12598, equation 6): u + scale * (c - u) of conditional c and unconditional u.

    Attributes:
        scale: the largest where a call has several; 1 for none; None where nothing tells it.
        norm_along: the guided output is scaled to the norm of the conditional one along this dimension; None: it is not.
        is_rescaled: it is scaled nearer to the standard deviation of the conditional one (arXiv 2305.08891, equation 15).
        shown: the amplification that the first tick of the run has shown; None: none.
        options: of a pipeline call that change its outputs beside the scale, by name: the scale that a distilled network is told, rescaling.
            Empty in loops.
    """

    scale: float | None = None
    norm_along: int | None = None
    is_rescaled: bool = False
    shown: float | None = None
    options: tuple[tuple[str, float], ...] = ()

    @property
    def is_linear(self) -> bool:
        """Whether weighted sums of passes make the weighted sum of guided outputs."""
        return self.norm_along is None and not self.is_rescaled

    @property
    def counted(self) -> float:
        """The scale that a method counts with, where it may be unknown: 1 for none."""
        return TYPICAL_SCALE if self.scale is None else max(self.scale, 1.0)

    @property
    def amplification(self) -> float:
        """Root mean square of the guided velocity u + scale * (c - u) at pure noise, over that of the conditional one; 1 without guidance.

        Where no tick has shown it, the passes are taken to be `TYPICAL_DISTANCE` apart, and their difference to be orthogonal to the unconditional
        velocity, as it nearly is at pure noise.
        """
        if self.shown is not None:
            return self.shown
        return math.sqrt(1 + TYPICAL_DISTANCE**2 * (self.counted**2 - 1))

    @property
    def strength(self) -> float:
        """What methods count with instead of the scale, which it is where no tick has shown an amplification.

        What was shown is put as the scale that amplifies as much if the passes are `TYPICAL_DISTANCE` apart, with one decimal, so that runs that are nearly
        alike share a plan. It counts where the scale is unknown, or more than a factor `UNTELLING` away. If the norm is kept, the strength is less
        (see `KEEPING_NORM`).
        """
        counted = self.counted if self.shown is None else self._by(self.shown)
        return counted if self.norm_along is None else counted**KEEPING_NORM

    def _by(self, shown: float) -> float:
        """The scale, unless what was shown is far from it."""
        found = math.sqrt(1 + (shown**2 - 1) / TYPICAL_DISTANCE**2)
        is_usual = self.scale is not None and found / UNTELLING <= self.counted <= found * UNTELLING
        return self.counted if is_usual else round(found, 1)

    def showing(self, conditional: float, unconditional: float, both: float) -> "Guidance":
        """With the amplification that the first tick shows, to two decimals; as it is where it shows none.

        Args:
            conditional, unconditional: squares of the velocity of each pass c and u, summed or averaged over its elements.
            both: their products, likewise.
        """
        scale = self.counted
        guided = scale**2 * conditional + (1 - scale) ** 2 * unconditional + 2 * scale * (1 - scale) * both
        found = guided / conditional if conditional > 0 else math.inf
        return replace(self, shown=round(math.sqrt(max(found, 1.0)), 2)) if found < math.inf else self

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
