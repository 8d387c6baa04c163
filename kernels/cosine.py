"""The cosine of two tensors, as the reference implementations compute it."""

import torch
from torch import Tensor

TINY = torch.finfo(torch.float32).tiny


def cosine(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """The cosine of two fp32 tensors along `dim`; 0 where either is zero. Several times faster on a CPU than PyTorch's."""
    squares = a.square().sum(dim).mul_(b.square().sum(dim))
    return (a * b).sum(dim).mul_(squares.clamp_(min=TINY).rsqrt_())
