"""Shared by the elementwise kernels: how a matrix is cut into tiles."""

from collections.abc import Mapping

import triton
import triton.language as tl

MAX_COLUMNS = 4096

LARGE = 1 << 22
"""Elements from which on a GPU is full with tiles of 2048."""


def launch_of(elements: int) -> dict[str, int]:
    """How an elementwise kernel is launched: small tiles while these are few, so that they reach all multiprocessors.

    Nothing is tuned: the first call would take seconds, and CUDA graphs could not capture it.
    """
    return {"BLOCK": 2048 if elements >= LARGE else 1024, "num_warps": 4}


def columns(inner: int) -> int:
    """The constexpr `COLUMNS` for rows of `inner` elements."""
    return min(int(triton.next_power_of_2(inner)), MAX_COLUMNS)


@triton.constexpr_function
def tile_width(block: int, columns: int) -> int:
    """The width of a tile of `block` elements, in rows of up to `columns` elements."""
    return min(block, columns)


def tile_count(rows: int, inner: int, meta: Mapping[str, int]) -> int:
    """The number of tiles of `BLOCK` elements, at most `COLUMNS` wide, that cover a matrix."""
    width = tile_width(meta["BLOCK"], meta["COLUMNS"])
    return int(triton.cdiv(rows, meta["BLOCK"] // width) * triton.cdiv(inner, width))


@triton.jit
def tile(index, inner, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    """Row indices [BLOCK_R, 1] and column indices [1, BLOCK_C] of a tile.

    They are int64, since videos exceed 2^31 elements. The division is done before that, in 32 bits where `inner` has as many.
    """
    BLOCK_C: tl.constexpr = tile_width(BLOCK, COLUMNS)
    BLOCK_R: tl.constexpr = BLOCK // BLOCK_C
    across = tl.cdiv(inner, BLOCK_C)
    down = index // across
    row = tl.cast(down, tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    column = tl.cast(index - down * across, tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    return row, column


@triton.jit
def store(pointer, value, mask):
    """Stores `value` in the pointer's dtype. To 16 or 8 bits it is rounded by way of fp32, as PyTorch does."""
    if pointer.dtype.element_ty.primitive_bitwidth < 32:
        value = value.to(tl.float32)
    tl.store(pointer, value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def total(values):
    """The sum of a tile."""
    return tl.sum(tl.sum(values, axis=1), axis=0)
