"""The weighted sum of stored features, dequantised, corrected and added to its base in one pass."""

import math
import struct
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffcache.kernels.strided import Grid, as_matrix, check_shapes, with_result
from diffcache.kernels.tiles_triton import columns, launch_of, store, tile, tile_count


@triton.jit
def coefficient(start, outer, column, stride_outer, stride_inner, inside, ACC: tl.constexpr):
    """One tile of a coefficient, which is broadcast along the features' other dimensions."""
    offset = outer * stride_outer + column * stride_inner
    return tl.load(start + offset, mask=inside, other=0.0).to(ACC)


@triton.jit
def weighted_sum_kernel(
    features,  # DEPTH x [rows, inner]
    scales,  # DEPTH x [rows]
    weights_high,  # DEPTH floats; their sum with weights_low is the weight
    weights_low,
    base,  # [rows, inner]
    gain,  # [outer, channels], read at (row // middle, column), like shift
    shift,
    value,  # [rows, inner]
    rows,
    inner,
    middle,
    strides,  # DEPTH row strides of the features
    stride_b,
    stride_v,
    gain_outer,
    gain_inner,
    shift_outer,
    shift_inner,
    ACC: tl.constexpr,
    DEPTH: tl.constexpr,
    QUANTIZED: tl.constexpr,
    HAS_BASE: tl.constexpr,
    HAS_GAIN: tl.constexpr,
    HAS_SHIFT: tl.constexpr,
    OF_VALUE: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, column = tile(tl.program_id(0), inner, BLOCK, COLUMNS)
    inside = (row < rows) & (column < inner)
    outer = row // middle
    total = tl.zeros(inside.shape, ACC)
    for j in tl.static_range(DEPTH):
        feature = tl.load(features[j] + row * strides[j] + column, mask=inside, other=0.0).to(ACC)
        if QUANTIZED:
            feature *= tl.load(scales[j] + row, mask=row < rows, other=0.0)
        total += feature * (tl.cast(weights_high[j], ACC) + tl.cast(weights_low[j], ACC))
    if not OF_VALUE:
        if HAS_GAIN:
            total *= coefficient(gain, outer, column, gain_outer, gain_inner, inside, ACC)
        if HAS_SHIFT:
            total += coefficient(shift, outer, column, shift_outer, shift_inner, inside, ACC)
    if HAS_BASE:
        total += tl.load(base + row * stride_b + column, mask=inside, other=0.0).to(ACC)
    if OF_VALUE:
        if HAS_GAIN:
            total *= coefficient(gain, outer, column, gain_outer, gain_inner, inside, ACC)
        if HAS_SHIFT:
            total += coefficient(shift, outer, column, shift_outer, shift_inner, inside, ACC)
    store(value + row * stride_v + column, total, inside)


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
    like = features[0]
    sources = [*features] if base is None else [*features, base]
    coefficients = [_rows_of(coefficient, like.shape, channel_dim) for coefficient in (gain, shift)]
    by_row = len(scales) > 0 or any(coefficient is not None for coefficient in (gain, shift))
    if by_row:
        check_shapes(sources)
        value = torch.empty(like.shape, dtype=dtype, device=like.device)
        grid = Grid.of([as_matrix(tensor, like.shape[-1]) for tensor in (*sources, value)])
    else:
        grid, value = with_result(sources, dtype)
    matrices, rows, inner, strides = grid
    depth, target = len(features), matrices[-1]
    launch = {"COLUMNS": columns(inner), **launch_of(value.numel())}
    weights_high = [_in_fp32(weight) for weight in weights]
    weighted_sum_kernel[(tile_count(rows, inner, launch),)](
        tuple(matrices[:depth]),
        tuple(scale.contiguous() for scale in scales) or tuple(matrices[:depth]),
        tuple(weights_high),
        tuple(weight - high for weight, high in zip(weights, weights_high, strict=True)),
        matrices[depth],
        *(target if coefficient is None else coefficient for coefficient in coefficients),
        target,
        rows,
        inner,
        _rows_each(like.shape, channel_dim),
        strides[:depth],
        strides[depth],
        strides[-1],
        *(stride for coefficient in coefficients for stride in _strides(coefficient)),
        ACC=tl.float64 if torch.float64 in (like.dtype, precision) else tl.float32,
        DEPTH=depth,
        QUANTIZED=len(scales) > 0,
        HAS_BASE=base is not None,
        HAS_GAIN=gain is not None,
        HAS_SHIFT=shift is not None,
        OF_VALUE=of_value,
        **launch,
    )
    return value if like.is_contiguous() or not by_row else torch.empty_like(like, dtype=dtype).copy_(value)


def _in_fp32(weight: float) -> float:
    """`weight` in fp32, as Triton passes it to a kernel. The caller passes the rest as a second number."""
    rounded: float = struct.unpack("f", struct.pack("f", weight))[0]
    return rounded


def _rows_of(coefficient: Tensor | None, shape: torch.Size, channel_dim: int) -> Tensor | None:
    """A coefficient as [outer, channels] if the channels are the features' last dimension, else as [outer, 1]."""
    if coefficient is None:
        return None
    channel = channel_dim % len(shape)
    if channel == len(shape) - 1:
        return coefficient.expand(shape[0] if channel else 1, -1)
    spread = list(shape[: channel + 1])
    aligned = [1] * len(spread)
    aligned[-1] = coefficient.shape[-1]
    if coefficient.ndim == 2:
        aligned[0] = len(coefficient)
    return coefficient.reshape(aligned).expand(spread).reshape(-1, 1)


def _rows_each(shape: torch.Size, channel_dim: int) -> int:
    """How many of the features' rows (of the last dimension) share one row of a coefficient."""
    channel = channel_dim % len(shape)
    return math.prod(shape[1:-1] if channel == len(shape) - 1 else shape[channel + 1 : -1])


def _strides(coefficient: Tensor | None) -> tuple[int, int]:
    if coefficient is None:
        return 0, 0
    return coefficient.stride(0), coefficient.stride(1) if coefficient.shape[1] > 1 else 0
