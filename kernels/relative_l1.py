"""Mean absolute values and differences, reduced in fp32: what adaptive decisions are made of."""

import torch
from torch import Tensor


def mean_abs(a: Tensor, b: Tensor | None = None) -> Tensor:
    """mean|a|, or mean|a - b|.

    Args:
        a: any shape and floating dtype, at least one element.
        b: same shape as `a`, or None.

    Returns:
        A 0-dim fp32 tensor on the device of `a`; nothing is read back.
    """
    difference = a.float() if b is None else a.float() - b.float()
    return difference.abs().mean(dtype=torch.float32)
