"""Mean absolute values and differences, reduced in fp32; adaptive cache schedulers decide by them."""

import torch
from torch import Tensor

from diffcache.kernels.dispatch import op

EPS = 1e-8


@op()
def mean_abs(a: Tensor, b: Tensor | None = None) -> Tensor:
    """mean|a|, or mean|a - b|.

    Args:
        a: any shape and floating dtype, at least one element.
        b: same shape as `a`, or None.

    Returns:
        A 0-dim fp32 tensor on the device of `a`, without a device-to-host copy.
    """
    difference = a.float() if b is None else a.float() - b.float()
    return difference.abs().mean(dtype=torch.float32)


def relative_l1(a: Tensor, b: Tensor) -> Tensor:
    """mean|a - b| / (mean|b| + 1e-8), in one pass; 0-dim fp32.

    Args:
        a: any shape and floating dtype, at least one element. A view of some tokens, `x[:, i:j]`, is not copied.
        b: same shape.
    """
    change, size = l1_means(a, b).unbind()
    return change / (size + EPS)


@op()
def l1_means(a: Tensor, b: Tensor) -> Tensor:
    """mean|a - b| and mean|b|, fp32 [2]."""
    return torch.stack([mean_abs.reference(a, b), mean_abs.reference(b)])


@op()
def secant_means(x: Tensor, x_past: Tensor, v: Tensor, v_past: Tensor) -> Tensor:
    """mean|v - v_past|, mean|v| and mean|x - x_past|, fp32 [3], for EasyCache's rate of change.

    Source: arXiv 2507.02860, k = mean|v - v_past| / mean|x - x_past|.

    Args:
        x: the denoiser's input, floating, at least one element.
        x_past: its input when it was computed the time before, same shape.
        v: the denoiser's output, floating, at least one element.
        v_past: its output when it was computed the time before, same shape as `v`.
    """
    return torch.stack([mean_abs.reference(v, v_past), mean_abs.reference(v), mean_abs.reference(x, x_past)])
