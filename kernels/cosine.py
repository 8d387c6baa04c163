"""The cosine that references measure likeness by."""

import torch
from torch import Tensor

TINY = torch.finfo(torch.float32).tiny


def cosine(a: Tensor, b: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """Of two fp32 tensors along `dims`; 0 where either is all zero. Several times faster on CPU than PyTorch's own."""
    squares = a.square().sum(dims) * b.square().sum(dims)
    return (a * b).sum(dims) * squares.clamp(min=TINY).rsqrt()
