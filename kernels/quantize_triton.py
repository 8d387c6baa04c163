"""Rows of a feature, or of a residual, in eight bits, alone or with the means that the secant needs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffcache.kernels.quantize import LARGEST, TINY
from diffcache.kernels.strided import as_matrix, check_shapes
from diffcache.kernels.tiles_triton import finish, total

BLOCK = 4096
ELEMENTS_PER_WARP = 512


@triton.jit
def quantize_kernel(
    x,  # [rows, inner], like base, past_x, past_base and values
    base,
    past_x,
    past_base,
    values,
    scales,  # [rows]
    partials,  # [3, programs]: |x - past_x|, |x|, |base - past_base|
    rows,
    inner,
    stride_x,
    stride_b,
    stride_px,
    stride_pb,
    largest_level,
    tiny,
    HAS_BASE: tl.constexpr,
    MEASURES: tl.constexpr,
    ROUNDS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row = program * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < inner)
    feature = tl.load(x + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    if MEASURES:
        past = tl.load(past_x + row * stride_px + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(partials + program, total(tl.abs(feature - past)))
        tl.store(partials + programs + program, total(tl.abs(feature)))
    if HAS_BASE:
        start = tl.load(base + row * stride_b + column, mask=inside, other=0.0).to(tl.float32)
        feature -= start
    if MEASURES:
        past = tl.load(past_base + row * stride_pb + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(partials + 2 * programs + program, total(tl.abs(start - past)))
    magnitude = tl.abs(feature)
    largest = tl.max(magnitude, axis=1, keep_dims=True)
    infinite = tl.max((magnitude < float("inf")).to(tl.int32) ^ 1, axis=1, keep_dims=True)  # `max` drops NaN
    bounded = tl.maximum(largest, tiny)
    levels = feature * tl.div_rn(largest_level, bounded)
    if ROUNDS:
        levels = tl.floor(levels + 0.5)
    tl.store(values + row * inner + column, levels.to(values.dtype.element_ty), mask=inside)
    scale = tl.where(infinite == 1, float("nan"), tl.div_rn(bounded, largest_level))
    tl.store(scales + row, scale, mask=row < rows)


def quantize_rows(x: Tensor, base: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    values, scales, _ = _quantize([x] if base is None else [x, base], dtype)
    return values, scales


def quantize_and_measure(
    output: Tensor, base: Tensor, past_output: Tensor, past_base: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    values, scales, partials = _quantize([output, base, past_output, past_base], dtype)
    return values, scales, finish(partials, output.numel())


def _quantize(tensors: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Values, scales and partial sums of x, of x - base, or of the latter measured against past tensors."""
    check_shapes(tensors)
    x = tensors[0]
    inner = x.shape[-1]
    matrices = [as_matrix(tensor, inner) for tensor in tensors]
    rows = len(matrices[0])
    columns = int(triton.next_power_of_2(inner))
    rows_each = max(BLOCK // columns, 1)
    programs = int(triton.cdiv(rows, rows_each))
    values = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)
    measures = len(matrices) == 4
    partials = torch.empty(3 if measures else 0, programs, dtype=torch.float32, device=x.device)
    padded = matrices + matrices[:1] * (4 - len(matrices))
    quantize_kernel[(programs,)](
        *padded,
        values,
        scales,
        partials,
        rows,
        inner,
        *(matrix.stride(0) for matrix in padded),
        LARGEST[dtype],
        TINY,
        HAS_BASE=len(matrices) > 1,
        MEASURES=measures,
        ROUNDS=dtype == torch.int8,
        ROWS=rows_each,
        COLUMNS=columns,
        num_warps=min(max(rows_each * columns // ELEMENTS_PER_WARP, 4), 32),
        enable_fp_fusion=False,  # levels are rounded as by the reference, to the bit
    )
    return values, scales, partials
