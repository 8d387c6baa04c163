"""What is stored of a computed call: its output, or the residual to its input, one precision wider."""

from typing import NamedTuple

import torch
from torch import Tensor

from diffcache.kernels.dispatch import op


def wide(tensor: Tensor) -> torch.dtype:
    """The next wider floating dtype: fp16 and bf16 -> fp32, fp32 -> fp64 (fp32 where a device has no fp64).

    A residual kept this wide gives the computed output back to the bit when the input stands still.
    """
    return torch.float32 if tensor.element_size() < 4 or tensor.is_mps else torch.float64


WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}
"""Two numbers of the first dtype take as many bytes as one of the second, where the device has both."""


class Residual(NamedTuple):
    """output - base, left to whoever reads it: nothing is lost, in as many bytes as the difference takes one precision wider.

    Attributes:
        both: the output and the base, as they were: [2, *shape], floating.
    """

    both: Tensor

    @property
    def nbytes(self) -> int:
        return self.both.nbytes


def keep_residual(output: Tensor, base: Tensor | None) -> Tensor | Residual:
    """output - base as it is cheapest to keep, nothing lost of it, or a copy of `output` where there is no base.

    Args:
        output: what the module returned, any shape, floating where there is a base.
        base: the input it is a residual to, same shape, or None.

    Returns:
        New memory: a `Residual` where that takes no more bytes and leaves the elements in order, else what
        `store_residual` gives.
    """
    if base is None:
        return output.clone()
    alike = output.dtype is base.dtype and output.dtype in WIDER and not output.is_mps
    if alike and output.stride(-1) == 1:
        return Residual(torch.stack((output, base)))
    return store_residual(output, base)


def store_residual(output: Tensor, base: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
    """output - base, or a copy of `output` where there is no base.

    Args:
        output: what the module returned, any shape, floating where `base` is given.
        base: the input it is a residual to, same shape, or None.
        dtype: fp32, bf16, fp16 or fp64 to store what is floating in. None: a residual in the next wider dtype, an
            output in its own.

    Returns:
        A new tensor of the output's shape; it shares no memory with either argument.
    """
    if base is None:
        return output.to(dtype, copy=True) if dtype and output.is_floating_point() else output.clone()
    return subtract(output, base, dtype or wide(output))


@op()
def subtract(output: Tensor, base: Tensor, dtype: torch.dtype) -> Tensor:
    """output - base, computed one precision wider than the output and rounded once to `dtype`."""
    difference = output.to(wide(output), copy=True).sub_(base)
    return difference if difference.dtype is dtype else difference.to(dtype)
