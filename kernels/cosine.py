"""The cosine that references measure likeness by."""

import torch
from torch import Tensor

TINY = torch.finfo(torch.float32).tiny


def cosine(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """Of two fp32 tensors along `dim`; 0 where either is all zero. Several times faster on CPU than PyTorch's own."""
    squares = a.square().sum(dim).mul_(b.square().sum(dim))
    return (a * b).sum(dim).mul_(squares.clamp_(min=TINY).rsqrt_())
