"""What is stored of a computed call: its output, or the residual of the output to the input, one precision wider."""

from typing import NamedTuple

import torch
from torch import Tensor

from diffcache.kernels.dispatch import op


def wide(tensor: Tensor) -> torch.dtype:
    """The next wider floating dtype: fp16 and bf16 -> fp32, fp32 -> fp64 (fp32 where a device has no fp64).

    A residual in this dtype, added to an unchanged input, gives the computed output to the bit.
    """
    return torch.float32 if tensor.element_size() < 4 or tensor.is_mps else torch.float64


WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}
"""The next wider dtype, of twice the size, on devices that have it."""


class Residual(NamedTuple):
    """output - base, kept as the two tensors; whoever reads it subtracts.

    So nothing is lost, in as many bytes as the difference takes one precision wider, and storing is one copy.

    Attributes:
        both: the output and the base, [2, *shape], floating.
    """

    both: Tensor

    @property
    def nbytes(self) -> int:
        return self.both.nbytes


def keep_residual(output: Tensor, base: Tensor | None) -> Tensor | Residual:
    """output - base without loss, in the form that is cheaper to make; a copy of `output` if there is no base.

    Args:
        output: what the module returned, any shape, floating where there is a base.
        base: the input, same shape, or None.

    Returns:
        New memory: a `Residual` if both tensors have the same dtype, one of `WIDER`, and the output's last dimension has no
        gaps; else what `store_residual` returns. On MPS always the latter.
    """
    if base is None:
        return output.clone()
    alike = output.dtype is base.dtype and output.dtype in WIDER and not output.is_mps
    if alike and output.stride(-1) == 1:
        return Residual(torch.stack((output, base)))
    return store_residual(output, base)


def store_residual(output: Tensor, base: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
    """output - base; a copy of `output` if there is no base.

    Args:
        output: what the module returned, any shape, floating where `base` is given.
        base: the input, same shape, or None.
        dtype: fp32, bf16, fp16 or fp64, for floating tensors. None: the next wider dtype for a residual, the output's own
            for a copy.

    Returns:
        A new tensor of the output's shape; it shares no memory with either argument.
    """
    if base is None:
        return output.to(dtype, copy=True) if dtype and output.is_floating_point() else output.clone()
    return subtract(output, base, dtype or wide(output))


@op()
def subtract(output: Tensor, base: Tensor, dtype: torch.dtype) -> Tensor:
    """output - base, computed one precision wider than the output, and rounded once to `dtype`."""
    difference = output.to(wide(output), copy=True).sub_(base)
    return difference if difference.dtype is dtype else difference.to(dtype)
