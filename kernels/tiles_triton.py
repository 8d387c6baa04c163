"""Shared by the elementwise kernels: how a matrix is cut into tiles, and how launch configurations are tuned."""

from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

MAX_COLUMNS = 4096

CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=warps)
    for block, warps in ((1024, 4), (2048, 4), (2048, 8), (4096, 8))
]


def tuned(key: Sequence[str]) -> Any:
    """Decorates an elementwise kernel: it runs with the fastest of `CONFIGS` for each value of `key`.

    The choice is kept on disk. The interpreter always uses the first configuration. Reductions are not tuned, because the
    last bits of their results would depend on the choice.
    """
    configs = CONFIGS[:1] if triton.knobs.runtime.interpret else CONFIGS
    return triton.autotune(configs, key=list(key), cache_results=True)


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


def size_class(matrix: Tensor) -> int:
    """The constexpr `SIZE`, for the tuner only: sizes within a factor of about 16 share a configuration."""
    return matrix.numel().bit_length() // 4


@triton.jit
def tile(index, inner, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    """Row indices [BLOCK_R, 1] and column indices [1, BLOCK_C] of a tile; int64, since videos exceed 2^31 elements."""
    BLOCK_C: tl.constexpr = tile_width(BLOCK, COLUMNS)
    BLOCK_R: tl.constexpr = BLOCK // BLOCK_C
    across = tl.cdiv(inner, BLOCK_C)
    index = tl.cast(index, tl.int64)
    row = (index // across) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    column = (index % across) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
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
