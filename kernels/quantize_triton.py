"""Quantises the rows of a feature, or of a residual, to eight bits."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffcache.kernels.quantize import LARGEST, TINY
from diffcache.kernels.strided import as_matrix, check_shapes

BLOCK = 4096
ELEMENTS_PER_WARP = 512


@triton.jit
def quantize_kernel(
    x,  # [rows, inner], like base and values
    base,
    values,
    scales,  # [rows]
    rows,
    inner,
    stride_x,
    stride_b,
    largest_level,
    tiny,
    HAS_BASE: tl.constexpr,
    ROUNDS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < inner)
    feature = tl.load(x + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_BASE:
        feature -= tl.load(base + row * stride_b + column, mask=inside, other=0.0).to(tl.float32)
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
    tensors = [x] if base is None else [x, base]
    check_shapes(tensors)
    inner = x.shape[-1]
    matrices = [as_matrix(tensor, inner) for tensor in tensors]
    rows = len(matrices[0])
    columns = int(triton.next_power_of_2(inner))
    rows_each = max(BLOCK // columns, 1)
    values = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)
    quantize_kernel[(triton.cdiv(rows, rows_each),)](
        matrices[0],
        matrices[-1],
        values,
        scales,
        rows,
        inner,
        matrices[0].stride(0),
        matrices[-1].stride(0),
        LARGEST[dtype],
        TINY,
        HAS_BASE=base is not None,
        ROUNDS=dtype == torch.int8,
        ROWS=rows_each,
        COLUMNS=columns,
        num_warps=min(max(rows_each * columns // ELEMENTS_PER_WARP, 4), 32),
        enable_fp_fusion=False,  # so that levels equal the reference's to the bit
    )
    return values, scales
