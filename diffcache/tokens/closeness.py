"""How far two tensors differ."""

import math

import torch
from torch import Tensor


def error_of(a: Tensor, b: Tensor) -> float:
    """How far two tensors of one shape differ: the largest difference, over the largest entry of the first or over 1 where that is smaller.

    It is 0 where they are equal to the bit. Else it is infinite where an entry is not finite.
    """
    if torch.equal(a, b):
        return 0.0
    wide, other = a.float(), b.float()
    largest = float(wide.abs().max().clamp_min(1.0))
    found = float((wide - other).abs().max()) / largest
    return float("inf") if math.isnan(found) else found
