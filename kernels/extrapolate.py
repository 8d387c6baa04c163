"""The value of a reused call: a weighted sum of stored features, plus the input they are residuals to."""

from collections.abc import Sequence

import torch
from torch import Tensor


def extrapolate(
    features: Sequence[Tensor], weights: Sequence[float], base: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """base + sum_j weights[j] * features[j], summed in the features' precision (fp32 at least), rounded once.

    Args:
        features: at least one tensor, all of one shape and dtype.
        weights: one number for each.
        base: what the features are residuals to (same shape), or None.
        dtype: of the result.

    Returns:
        A new tensor of the features' shape; it shares no memory with any argument.
    """
    precise = torch.promote_types(features[0].dtype, torch.float32)
    total = features[0].to(precise, copy=True)
    if weights[0] != 1.0:
        total.mul_(weights[0])
    for feature, weight in zip(features[1:], weights[1:], strict=True):
        total.add_(feature, alpha=weight)
    if base is not None:
        total.add_(base)
    return total.to(dtype)
