"""Subtracts an input from an output."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffcache.kernels.residual import wide
from diffcache.kernels.strided import with_result
from diffcache.kernels.tiles_triton import columns, launch_of, store, tile, tile_count


@triton.jit
def subtract_kernel(
    output,  # [rows, inner], like base and residual
    base,
    residual,
    rows,
    inner,
    stride_o,
    stride_b,
    stride_r,
    ACC: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, column = tile(tl.program_id(0), inner, BLOCK, COLUMNS)
    inside = (row < rows) & (column < inner)
    minuend = tl.load(output + row * stride_o + column, mask=inside).to(ACC)
    subtrahend = tl.load(base + row * stride_b + column, mask=inside).to(ACC)
    store(residual + row * stride_r + column, minuend - subtrahend, inside)


def subtract(output: Tensor, base: Tensor, dtype: torch.dtype) -> Tensor:
    grid, residual = with_result([output, base], dtype)
    launch = {"COLUMNS": columns(grid.inner), **launch_of(residual.numel())}
    subtract_kernel[(tile_count(grid.rows, grid.inner, launch),)](
        *grid.tensors,
        grid.rows,
        grid.inner,
        *grid.strides,
        ACC=tl.float64 if wide(output) == torch.float64 else tl.float32,
        **launch,
    )
    return residual
