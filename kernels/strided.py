"""Views of strided tensors as matrices with contiguous rows, so that elementwise kernels need no copy."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

SHORT_RUN = 16
"""Tensors are copied if their contiguous runs are shorter than this many elements."""


class Grid(NamedTuple):
    """Tensors of one shape as matrices with contiguous rows.

    Attributes:
        tensors: the matrices, or the tensors themselves where these are one row without gaps.
        rows, inner: of each matrix.
        strides: row stride of each.
    """

    tensors: list[Tensor]
    rows: int
    inner: int
    strides: tuple[int, ...]

    @classmethod
    def of(cls, matrices: list[Tensor]) -> "Grid":
        rows, inner = matrices[0].shape
        return cls(matrices, rows, inner, tuple(matrix.stride(0) for matrix in matrices))


def check_shapes(tensors: Sequence[Tensor]) -> None:
    """Refuses tensors of different shapes, because a kernel would read past the end of the smaller one.

    Raises:
        ValueError: the shapes differ.
    """
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        raise ValueError(f"The shapes {sorted(shapes)} differ: give tensors of one shape.")


def contiguous_channels(tensor: Tensor) -> Tensor:
    """The tensor, copied if its last dimension has gaps."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def as_matrix(tensor: Tensor, inner: int) -> Tensor:
    """The tensor as [rows, inner] with contiguous rows: a view if the strides allow it (as of `x[:, a:b]`), else a copy."""
    matrix = tensor.reshape(-1, inner)
    return matrix if inner == 1 or matrix.stride(1) == 1 else matrix.contiguous()


def as_matrices(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one shape, not empty, as matrices with the longest rows possible, and all with one order of elements.

    Raises:
        ValueError: their shapes differ.
    """
    check_shapes(tensors)
    ordered = [tensor.permute(_memory_order(tensors[0])) for tensor in tensors]
    inner = _longest_run(ordered)
    if inner < SHORT_RUN:
        return [tensor.contiguous().view(1, -1) for tensor in ordered]
    return [as_matrix(tensor, inner) for tensor in ordered]


def with_result(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Grid, Tensor]:
    """Makes a dense tensor with the first one's order of dimensions in memory; returns the grid with it as last, and itself.

    Raises:
        ValueError: the shapes differ.
    """
    first = tensors[0]
    shape = first.shape
    if all(tensor.is_contiguous() and tensor.shape == shape for tensor in tensors):  # nearly always
        result = torch.empty(shape, dtype=dtype, device=first.device)
        return Grid([*tensors, result], 1, first.numel(), (0,) * (len(tensors) + 1)), result
    order = _memory_order(first)
    dense = torch.empty([shape[dim] for dim in order], dtype=dtype, device=first.device)
    result = dense.permute([order.index(dim) for dim in range(len(order))])
    return Grid.of(as_matrices([*tensors, result])), result


def _memory_order(tensor: Tensor) -> list[int]:
    """The dimensions, outermost in memory first."""
    strides = tensor.stride()
    if 0 in strides:
        return list(range(tensor.ndim))
    return sorted(range(tensor.ndim), key=lambda dim: -strides[dim])


def _longest_run(tensors: Sequence[Tensor]) -> int:
    """The number of elements in the last dimensions, as many of them as are contiguous in all of the tensors."""
    run = 1
    for dim in reversed(range(tensors[0].ndim)):
        size = tensors[0].shape[dim]
        if size != 1 and any(tensor.stride(dim) != run for tensor in tensors):
            break
        run *= size
    return run
