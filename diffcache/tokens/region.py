"""The region of an edit: RegionE's adaptive region partition (ARP, arXiv 2510.25590)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CROSS = ((0.0, 1.0, 0.0), (1.0, 1.0, 1.0), (0.0, 1.0, 0.0))


def edited_tokens(clean: Tensor, reference: Tensor, eta: float) -> Tensor:
    """Which tokens an edit changes: s_k = cos(x0[k], reference[k]) <= eta. Bool [batch, tokens].

    Args:
        clean: the estimated result x0 = x - sigma * v, [batch, tokens, channels].
        reference: of the same shape.
        eta: the largest similarity of an edited token.
    """
    return functional.cosine_similarity(clean.float(), reference.float(), dim=-1) <= eta


def smoothed(edited: Tensor, height: int, width: int) -> Tensor:
    """Drops single tokens and closes gaps: erosion by a cross of 3 x 3, then dilation by a square of 5 x 5.

    Outside the picture nothing is edited, so that erosion takes the border away.

    Args:
        edited: bool [batch, height * width].
    """
    grid = edited.view(-1, 1, height, width).float()
    cross = torch.tensor(CROSS, device=edited.device).view(1, 1, 3, 3)
    eroded = functional.conv2d(grid, cross, padding=1) >= cross.sum()
    return functional.max_pool2d(eroded.float(), 5, stride=1, padding=2).bool().view_as(edited)
