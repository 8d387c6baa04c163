"""Tensors as matrices whose rows are contiguous: what elementwise kernels address, gaps and all."""

from collections.abc import Sequence

import torch
from torch import Tensor

SHORT_RUN = 16


def check_shapes(tensors: Sequence[Tensor]) -> None:
    """Refuses tensors of different shapes: a kernel would read past the end of the smaller.

    Raises:
        ValueError: there are such.
    """
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        raise ValueError(f"The shapes {sorted(shapes)} do not go together: give tensors of one shape.")


def contiguous_channels(tensor: Tensor) -> Tensor:
    """The tensor, copied if its last dimension has gaps."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def as_matrix(tensor: Tensor, inner: int) -> Tensor:
    """[rows, inner] with contiguous rows; a view where the strides allow one (`x[:, a:b]`), else a copy."""
    matrix = tensor.reshape(-1, inner)
    return matrix if inner == 1 or matrix.stride(1) == 1 else matrix.contiguous()


def as_matrices(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one shape, not empty, as matrices with rows as long as can be, their elements in one order.

    Raises:
        ValueError: their shapes differ.
    """
    check_shapes(tensors)
    ordered = [tensor.permute(_memory_order(tensors[0])) for tensor in tensors]
    inner = _longest_run(ordered)
    if inner < SHORT_RUN:
        return [tensor.contiguous().view(1, -1) for tensor in ordered]
    return [as_matrix(tensor, inner) for tensor in ordered]


def with_result(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """`as_matrices` of the tensors and of a new, dense one that is laid out in memory like the first; and the new one."""
    order = _memory_order(tensors[0])
    dense = torch.empty([tensors[0].shape[dim] for dim in order], dtype=dtype, device=tensors[0].device)
    result = dense.permute([order.index(dim) for dim in range(len(order))])
    return as_matrices([*tensors, result]), result


def _memory_order(tensor: Tensor) -> list[int]:
    """The dimensions, outermost in memory first."""
    strides = tensor.stride()
    if 0 in strides:
        return list(range(tensor.ndim))
    return sorted(range(tensor.ndim), key=lambda dim: -strides[dim])


def _longest_run(tensors: Sequence[Tensor]) -> int:
    """How many elements, at the end of the shape, lie side by side in each of the tensors."""
    run = 1
    for dim in reversed(range(tensors[0].ndim)):
        size = tensors[0].shape[dim]
        if size != 1 and any(tensor.stride(dim) != run for tensor in tensors):
            break
        run *= size
    return run
