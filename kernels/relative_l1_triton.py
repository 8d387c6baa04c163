"""Mean absolute differences of one or two pairs of tensors, in one pass over each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffcache.kernels.strided import as_matrices
from diffcache.kernels.tiles_triton import columns, tile, tile_count, tile_width, total

PROGRAMS = 1024  # about as many as a large GPU runs at once; fixed, because the sums' last bits depend on it
REDUCTION_BLOCK = 2048


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
    QUANTITIES: tl.constexpr,
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
            if QUANTITIES > 1:
                size += tl.abs(past)
        change += tl.abs(value)
        if QUANTITIES > 2:
            start = tl.load(x + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
            end = tl.load(y + row * stride_y + column, mask=inside, other=0.0).to(tl.float32)
            moved += tl.abs(start - end)
    tl.store(partials + program, total(change))
    if QUANTITIES > 1:
        tl.store(partials + programs + program, total(size))
    if QUANTITIES > 2:
        tl.store(partials + 2 * programs + program, total(moved))


@triton.jit
def finish_kernel(partials, means, programs, count, BLOCK: tl.constexpr):
    """The second stage: means[j] = sum_i partials[j, i] / count, one program for each j."""
    j, i = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(means + j, tl.sum(tl.load(partials + j * programs + i, mask=i < programs, other=0.0)) / count)


def mean_abs(a: Tensor, b: Tensor | None = None) -> Tensor:
    return _means([a] if b is None else [a, b], quantities=1)[0]


def l1_means(a: Tensor, b: Tensor) -> Tensor:
    return _means([a, b], quantities=2)


def secant_means(x: Tensor, x_past: Tensor, v: Tensor, v_past: Tensor) -> Tensor:
    if x.shape == v.shape:
        return _means([v_past, v, x, x_past], quantities=3)
    return torch.cat([_means([v_past, v], quantities=2), _means([x, x_past], quantities=1)])


def _means(tensors: list[Tensor], quantities: int) -> Tensor:
    """The means of the first `quantities` of |a - b|, |b| and |x - y|, of `tensors` a, b, x, y or the first of them."""
    matrices = as_matrices(tensors)
    rows, inner = matrices[0].shape
    meta = {"BLOCK": REDUCTION_BLOCK, "COLUMNS": columns(inner)}
    tiles = tile_count(rows, inner, meta)
    programs = min(tiles, PROGRAMS)
    partials = matrices[0].new_empty(quantities, programs, dtype=torch.float32)
    padded = matrices + matrices[:1] * (4 - len(matrices))
    l1_kernel[(programs,)](
        *padded,
        partials,
        rows,
        inner,
        *(matrix.stride(0) for matrix in padded),
        tiles,
        HAS_B=len(tensors) > 1,
        QUANTITIES=quantities,
        **meta,
        num_warps=8,
    )
    means = partials.new_empty(quantities)
    finish_kernel[(quantities,)](partials, means, programs, float(tensors[0].numel()), BLOCK=PROGRAMS)
    return means
