"""The residual of an output to its input, alone or with the means that the secant needs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffcache.kernels.residual import wide
from diffcache.kernels.strided import with_result
from diffcache.kernels.tiles_triton import (
    PROGRAMS,
    REDUCTION_BLOCK,
    columns,
    finish,
    size_class,
    store,
    tile,
    tile_count,
    tile_width,
    total,
    tuned,
)


@tuned(key=["SIZE"])
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
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, column = tile(tl.program_id(0), inner, BLOCK, COLUMNS)
    inside = (row < rows) & (column < inner)
    minuend = tl.load(output + row * stride_o + column, mask=inside).to(ACC)
    subtrahend = tl.load(base + row * stride_b + column, mask=inside).to(ACC)
    store(residual + row * stride_r + column, minuend - subtrahend, inside)


@triton.jit
def subtract_and_measure_kernel(
    output,  # [rows, inner], like base, past_output, past_base and residual
    base,
    past_output,
    past_base,
    residual,
    partials,  # [3, programs]: |output - past_output|, |output|, |base - past_base|
    rows,
    inner,
    stride_o,
    stride_b,
    stride_po,
    stride_pb,
    stride_r,
    tiles,
    ACC: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    BLOCK_C: tl.constexpr = tile_width(BLOCK, COLUMNS)
    change = tl.zeros([BLOCK // BLOCK_C, BLOCK_C], tl.float32)
    size = tl.zeros([BLOCK // BLOCK_C, BLOCK_C], tl.float32)
    moved = tl.zeros([BLOCK // BLOCK_C, BLOCK_C], tl.float32)
    program, programs = tl.program_id(0), tl.num_programs(0)
    for index in range(program, tiles, programs):
        row, column = tile(index, inner, BLOCK, COLUMNS)
        inside = (row < rows) & (column < inner)
        v = tl.load(output + row * stride_o + column, mask=inside, other=0.0).to(ACC)
        x = tl.load(base + row * stride_b + column, mask=inside, other=0.0).to(ACC)
        store(residual + row * stride_r + column, v - x, inside)
        v_past = tl.load(past_output + row * stride_po + column, mask=inside, other=0.0).to(tl.float32)
        x_past = tl.load(past_base + row * stride_pb + column, mask=inside, other=0.0).to(tl.float32)
        change += tl.abs(v.to(tl.float32) - v_past)
        size += tl.abs(v.to(tl.float32))
        moved += tl.abs(x.to(tl.float32) - x_past)
    tl.store(partials + program, total(change))
    tl.store(partials + programs + program, total(size))
    tl.store(partials + 2 * programs + program, total(moved))


def subtract(output: Tensor, base: Tensor, dtype: torch.dtype) -> Tensor:

    matrices, residual = with_result([output, base], dtype)
    rows, inner = matrices[0].shape
    subtract_kernel[lambda meta: (tile_count(rows, inner, meta),)](
        *matrices,
        rows,
        inner,
        *(matrix.stride(0) for matrix in matrices),
        ACC=_precision(output),
        COLUMNS=columns(inner),
        SIZE=size_class(output),
    )
    return residual


def subtract_and_measure(
    output: Tensor, base: Tensor, past_output: Tensor, past_base: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:

    matrices, residual = with_result([output, base, past_output, past_base], dtype)
    rows, inner = matrices[0].shape
    meta = {"BLOCK": REDUCTION_BLOCK, "COLUMNS": columns(inner)}
    tiles = tile_count(rows, inner, meta)
    programs = min(tiles, PROGRAMS)
    partials = output.new_empty(3, programs, dtype=torch.float32)
    subtract_and_measure_kernel[(programs,)](
        *matrices,
        partials,
        rows,
        inner,
        *(matrix.stride(0) for matrix in matrices),
        tiles,
        ACC=_precision(output),
        **meta,
        num_warps=8,
    )
    return residual, finish(partials, output.numel())


def _precision(output: Tensor) -> tl.dtype:
    return tl.float64 if wide(output) == torch.float64 else tl.float32
