"""Ranking: which of several proposals is the best on a few samples."""

from collections.abc import Sequence

import torch
from torch import Tensor


def best_ranked(values: Sequence[Tensor]) -> int:
    """The proposal that is better than others on most samples: the one with the best mean rank, as in a Borda count. Of equal ones the first.

    With few samples the mean goes by the one or two on which proposals differ most, and on other samples another proposal is often the better one there. Our choice.

    Args:
        values: of each proposal, one for each sample, [samples]; the larger, the better.
    """
    each = torch.stack([one.double() for one in values])
    wins = (each[:, None] > each[None]).double() + 0.5 * (each[:, None] == each[None]).double()
    return int(wins.mean(dim=(1, 2)).argmax())
