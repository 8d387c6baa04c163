"""Replaces rows of the cache, and compares the new rows with the old ones."""

import torch
from torch import Tensor

from diffcache.kernels.cosine import cosine
from diffcache.kernels.dispatch import op


def _one_per_row(stored: Tensor, new: Tensor) -> Tensor:
    return stored.new_empty(new.shape[0], new.shape[2], dtype=torch.float32)


@op(mutates=("stored",), fake=_one_per_row)
def replace_and_compare(stored: Tensor, new: Tensor) -> Tensor:
    """Writes new rows over the stored ones; returns the cosine of each new row with its old one, fp32 [B, n].

    The cosine is taken over heads and channels together. dLLM-Cache (arXiv 2506.06295) recomputes the rows with the lowest
    cosines.

    Args:
        stored: [B, Hk, n, D], rows of the cache, written in place.
        new: [B, Hk, n, D].
    """
    old_row, new_row = (rows.transpose(1, 2).flatten(2).float() for rows in (stored, new))
    drift = cosine(old_row, new_row, 2)
    stored.copy_(new)
    return drift
