"""The value of a reused call: a weighted sum of stored features, plus the input to which they are residuals, corrected."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.compiler import is_compiling

from diffcache.kernels import dispatch
from diffcache.kernels.quantize import Quantized
from diffcache.kernels.residual import WIDER, Residual


@dataclass(frozen=True, slots=True)
class Correction:
    """An affine correction of each channel.

    Attributes:
        gain: [channels] or [batch, channels], a factor; None for no gain.
        shift: likewise, added after the gain.
        channel_dim: the features' dimension of channels.
        of_value: False corrects the feature (CacheQuant): base + gain * feature + shift. True corrects the whole value
            (ERTACache): gain * (base + feature) + shift.
    """

    gain: Tensor | None = None
    shift: Tensor | None = None
    channel_dim: int = -1
    of_value: bool = False


NO_CORRECTION = Correction()


def extrapolate(
    features: Sequence[Tensor | Quantized | Residual],
    weights: Sequence[float],
    base: Tensor | None,
    dtype: torch.dtype,
    correction: Correction = NO_CORRECTION,
) -> Tensor:
    """base + sum_j weights[j] * features[j], corrected.

    The sum is computed in the features' precision, in fp32 at least, and one precision wider for `Residual` features. It is
    rounded once.

    Args:
        features: at least one, all of one shape and dtype, all quantised or none. Their memory may have gaps.
        weights: one for each feature; (1,) holds, those of a Taylor or Lagrange polynomial extrapolate.
        base: the input to which the features are residuals, same shape; None if they are not residuals.
        dtype: of the result.
        correction: of the prediction; by default none.

    Returns:
        A new tensor of the features' shape; it shares no memory with any argument.

    Raises:
        ValueError: the numbers of features and weights differ.
    """
    if len(weights) != len(features):
        raise ValueError(f"{len(features)} features need as many weights, not {len(weights)}.")
    values: list[Tensor] = []
    scales: list[Tensor] = []
    factors: list[float] = []
    precision = None
    for feature, weight in zip(features, weights, strict=True):
        match feature:
            case Residual(both):
                values += both.unbind()
                factors += [weight, -weight]
                precision = WIDER[both.dtype]
            case Quantized(quantized, scale):
                values.append(quantized)
                scales.append(scale)
                factors.append(weight)
            case Tensor():
                values.append(feature)
                factors.append(weight)
    dispatched = is_compiling() or dispatch.uses_triton(values[0].device)
    run = weighted_sum if dispatched else weighted_sum.reference  # saves two calls at every site
    return run(
        values,
        scales,
        factors,
        base,
        correction.gain,
        correction.shift,
        correction.channel_dim,
        correction.of_value,
        dtype,
        precision,
    )


@dispatch.op()
def weighted_sum(
    features: Sequence[Tensor],
    scales: Sequence[Tensor],
    weights: Sequence[float],
    base: Tensor | None,
    gain: Tensor | None,
    shift: Tensor | None,
    channel_dim: int,
    of_value: bool,
    dtype: torch.dtype,
    precision: torch.dtype | None = None,
) -> Tensor:
    """`extrapolate` with plain tensors as arguments.

    Args:
        scales: one for each feature if they are quantised, else empty.
        gain, shift, channel_dim, of_value: see `Correction`.
        precision: of the sum; None: the first feature's, fp32 at least.
    """
    if scales:
        features = [values.float() * scale for values, scale in zip(features, scales, strict=True)]
    first, kind = features[0], precision or torch.promote_types(features[0].dtype, torch.float32)
    if first.dtype == kind and weights[0] != 1.0:
        total = first * weights[0]  # the same as copying and then multiplying, in one pass over memory
    else:
        total = first.to(kind, copy=True)
        if weights[0] != 1.0:
            total.mul_(weights[0])
    for feature, weight in zip(features[1:], weights[1:], strict=True):
        total.add_(feature, alpha=weight)
    corrects = gain is not None or shift is not None
    if corrects and not of_value:
        _correct(total, gain, shift, channel_dim)
    if base is not None:
        total.add_(base)
    if corrects and of_value:
        _correct(total, gain, shift, channel_dim)
    return total.to(dtype)


def _correct(total: Tensor, gain: Tensor | None, shift: Tensor | None, channel_dim: int) -> None:
    if gain is not None:
        total.mul_(_along(gain, channel_dim, total.ndim))
    if shift is not None:
        total.add_(_along(shift, channel_dim, total.ndim))


def _along(coefficient: Tensor, channel_dim: int, ndim: int) -> Tensor:
    """[channels] or [batch, channels], shaped to broadcast against `ndim` dimensions."""
    shape = [1] * ndim
    shape[channel_dim] = coefficient.shape[-1]
    if coefficient.ndim == 2:
        shape[0] = len(coefficient)
    return coefficient.reshape(shape)
