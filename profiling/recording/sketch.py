"""Sketches: features in a few kilobytes each, from which squared distances and cosines are estimated.

A feature of n elements is multiplied by random signs, and the products are summed in k random buckets (count sketch: Charikar,
Chen and Farach-Colton 2002; as a projection: Weinberger et al. 2009). For features x and y the product of their sketches is
an unbiased estimate of <x, y>, with a variance of at most (|x|^2 |y|^2 + <x, y>^2) / k; so the square of a distance has a
relative standard error of at most sqrt(2 / k), and a cosine an error of about sqrt(2 / k).
"""

from functools import lru_cache

import torch
from torch import Tensor

SIZE = 2048
"""Numbers in a sketch: 8 KiB. A squared distance then errs by 3 %, a distance by 1.6 % (one standard deviation)."""

AT_ONCE = 2**20
"""Elements that are summed at a time: their buckets are 64-bit for as long."""

SEED = 20130613
"""Of the signs and buckets, which all features of one size share: only such sketches can be compared."""


def sketched(feature: Tensor, size: int = SIZE) -> Tensor:
    """The sketch of a feature of any shape: fp32 [size], on the CPU."""
    flat = feature.detach().flatten()
    buckets, signs = _hashes(flat.numel(), size, flat.device)
    sketch = torch.zeros(size, dtype=torch.float32, device=flat.device)
    for start in range(0, flat.numel(), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        sketch.index_add_(0, buckets[part].long(), flat[part].float() * signs[part])
    return sketch.cpu()


@lru_cache(maxsize=16)
def _hashes(elements: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A bucket (16 bits) and a sign (8 bits) for each element."""
    noise = torch.Generator().manual_seed(SEED)
    buckets = torch.randint(size, (elements,), generator=noise, dtype=torch.int16)
    signs = 2 * torch.randint(2, (elements,), generator=noise, dtype=torch.int8) - 1
    return buckets.to(device), signs.to(device)
