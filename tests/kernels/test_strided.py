"""Kernels read slices in place; only rows that are too short or out of order are copied."""

import pytest
import torch
from support.kernel_layouts import LAYOUTS

from diffcache.kernels.strided import as_matrices, with_result

COPIED = {"short rows", "transposed slice"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_slices_are_read_in_place(layout: str) -> None:
    tensor = LAYOUTS[layout]()
    [matrix] = as_matrices([tensor])
    assert (matrix.data_ptr() == tensor.data_ptr()) == (layout not in COPIED)
    assert sorted(matrix.flatten().tolist()) == sorted(tensor.flatten().tolist())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_written_to_the_last_matrix_is_the_result(layout: str) -> None:
    tensor = LAYOUTS[layout]()
    grid, result = with_result([tensor], tensor.dtype)
    source, target = (one.view(grid.rows, grid.inner) for one in grid.tensors)
    target.copy_(source)
    assert torch.equal(result, tensor)
