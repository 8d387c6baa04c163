"""The scale of guidance as a run's first step shows it, where neither the pipeline nor the call tells it."""

from collections.abc import Sequence

import torch
from torch import Tensor

TOLERANCE = 0.05
"""What the noise scheduler gets may differ by so much of it from plain guidance of what was stored: that may be in eight bits."""


def shown_scale(passes: Sequence[Tensor], guided: Tensor) -> float | None:
    """The scale with which plain guidance (arXiv 2207.12598, equation 6) makes a tensor of guidance passes. Reads the device once.

    Which pass is the conditional one need not be known: with u + s * (c - u) it is that of the larger weight.

    Args:
        passes: what each call returned, [batch, ...]; a single one with twice as many rows as `guided` holds two passes.
        guided: what the noise scheduler got, [batch, ...].

    Returns:
        To one decimal, and 1 where it got one pass as it was; None where it got something else.
    """
    if len(passes) == 1 and len(passes[0]) == 2 * len(guided):
        passes = passes[0].chunk(2)
    if not 1 <= len(passes) <= 2 or any(one.shape != guided.shape for one in passes):
        return None
    first, second = passes[0].float(), passes[-1].float()
    apart, moved = second - first, guided.float() - first
    share = ((moved * apart).sum() / apart.square().sum()).nan_to_num()
    left = (moved - share * apart).square().sum() / guided.float().square().sum()
    values: list[float] = torch.stack([share, left]).tolist()
    share_of_second, unexplained = values
    if not unexplained <= TOLERANCE**2:
        return None
    return round(max(share_of_second, 1 - share_of_second), 1)
