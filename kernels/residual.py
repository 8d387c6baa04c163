"""What is stored of a computed call: its output, or the residual to its input, one precision wider."""

import torch
from torch import Tensor

from diffcache.kernels.dispatch import op


def wide(tensor: Tensor) -> torch.dtype:
    """The next wider floating dtype: fp16 and bf16 -> fp32, fp32 -> fp64 (fp32 where a device has no fp64).

    A residual kept this wide gives the computed output back to the bit when the input stands still.
    """
    return torch.float32 if tensor.element_size() < 4 or tensor.is_mps else torch.float64


def store_residual(output: Tensor, base: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
    """output - base, or a copy of `output` where there is no base.

    Args:
        output: what the module returned, any shape, floating where `base` or `dtype` is given.
        base: the input it is a residual to, same shape, or None.
        dtype: fp32, bf16, fp16 or fp64 to store it in. None: a residual in the next wider dtype, an output in its own.

    Returns:
        A new tensor of the output's shape; it shares no memory with either argument.
    """
    if base is None:
        return output.clone() if dtype is None else output.to(dtype, copy=True)
    return subtract(output, base, dtype or wide(output))


@op()
def subtract(output: Tensor, base: Tensor, dtype: torch.dtype) -> Tensor:
    """output - base, computed one precision wider than the output and rounded once to `dtype`."""
    difference = output.to(wide(output), copy=True).sub_(base)
    return difference if difference.dtype is dtype else difference.to(dtype)
