"""Mean absolute differences of one or two pairs of tensors, in one pass over each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffcache.kernels.strided import as_matrices
from diffcache.kernels.tiles_triton import (
    PROGRAMS,
    REDUCTION_BLOCK,
    columns,
    finish,
    tile,
    tile_count,
    tile_width,
)


@triton.jit
def l1_kernel(
    a,  # [rows, inner], like b, x and y
    b,
    x,
    y,
    partials,  # [quantities, programs]: |a - b|, |b|, |x - y|
    rows,
    inner,
    stride_a,
    stride_b,
    stride_x,
    stride_y,
    tiles,
    HAS_B: tl.constexpr,
    HAS_XY: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    BLOCK_C: tl.constexpr = tile_width(BLOCK, COLUMNS)
    change = tl.zeros([BLOCK // BLOCK_C, BLOCK_C], tl.float32)
    size = tl.zeros([BLOCK // BLOCK_C, BLOCK_C], tl.float32)
    moved = tl.zeros([BLOCK // BLOCK_C, BLOCK_C], tl.float32)
    program, programs = tl.program_id(0), tl.num_programs(0)
    for index in range(program, tiles, programs):
        row, column = tile(index, inner, BLOCK, COLUMNS)
        inside = (row < rows) & (column < inner)
        value = tl.load(a + row * stride_a + column, mask=inside, other=0.0).to(tl.float32)
        if HAS_B:
            past = tl.load(b + row * stride_b + column, mask=inside, other=0.0).to(tl.float32)
            value -= past
            size += tl.abs(past)
        change += tl.abs(value)
        if HAS_XY:
            start = tl.load(x + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
            end = tl.load(y + row * stride_y + column, mask=inside, other=0.0).to(tl.float32)
            moved += tl.abs(start - end)
    tl.store(partials + program, tl.sum(tl.sum(change, axis=1), axis=0))
    tl.store(partials + programs + program, tl.sum(tl.sum(size, axis=1), axis=0))
    if HAS_XY:
        tl.store(partials + 2 * programs + program, tl.sum(tl.sum(moved, axis=1), axis=0))


def l1_means(a: Tensor, b: Tensor | None) -> Tensor:
    return _means(a, b, None, None)


def secant_means(x: Tensor, x_past: Tensor, v: Tensor, v_past: Tensor) -> Tensor:
    if x.shape == v.shape:
        return _means(v_past, v, x, x_past)
    return torch.cat([_means(v_past, v, None, None), _means(x, x_past, None, None)[:1]])


def _means(a: Tensor, b: Tensor | None, x: Tensor | None, y: Tensor | None) -> Tensor:
    given = [tensor for tensor in (a, b, x, y) if tensor is not None]
    matrices = as_matrices(given)
    rows, inner = matrices[0].shape
    meta = {"BLOCK": REDUCTION_BLOCK, "COLUMNS": columns(inner)}
    tiles = tile_count(rows, inner, meta)
    programs = min(tiles, PROGRAMS)
    partials = a.new_empty(3 if x is not None else 2, programs, dtype=torch.float32)
    padded = matrices + matrices[:1] * (4 - len(matrices))
    l1_kernel[(programs,)](
        *padded,
        partials,
        rows,
        inner,
        *(matrix.stride(0) for matrix in padded),
        tiles,
        HAS_B=b is not None,
        HAS_XY=x is not None,
        **meta,
        num_warps=8,
    )
    return finish(partials, a.numel())
