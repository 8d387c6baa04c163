"""Rows are replaced in place, and the result is their cosine similarity to the rows before."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from diffcache.kernels.row_drift import replace_and_compare

pytestmark = pytest.mark.usefixtures("device", "poisoned", "triton")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def replaced(stored: Tensor, new: Tensor) -> Tensor:
    """The kernel's cosines, found to be those of its reference and of PyTorch, and the new rows left behind."""
    rows = [x.transpose(1, 2).flatten(2).float() for x in (new, stored)]
    expected, twin = cosine_similarity(*rows, dim=2), stored.clone()
    drift = replace_and_compare(stored, new)
    torch.testing.assert_close(drift, replace_and_compare.reference(twin, new), rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(drift, expected)
    assert torch.equal(stored, new)
    assert torch.equal(twin, new)
    return drift


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 7, 20), (1, 1, 1, 1), (1, 8, 5, 64)], ids=str)
def test_any_dtype_and_size(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    replaced(torch.randn(shape).to(dtype), torch.randn(shape).to(dtype))


def test_rows_inside_a_cache() -> None:
    cache = torch.randn(2, 3, 11, 12)
    before = cache.clone()
    replaced(cache[:, :, 4:9], torch.randn(2, 5, 3, 12).transpose(1, 2))
    assert torch.equal(cache[:, :, :4], before[:, :, :4])
    assert torch.equal(cache[:, :, 9:], before[:, :, 9:])


def test_the_same_the_opposite_and_nothing() -> None:
    stored = torch.randn(1, 2, 3, 4)
    new = stored * torch.tensor([2.0, -1.0, 0.0])[:, None]
    torch.testing.assert_close(replaced(stored, new), torch.tensor([[1.0, -1.0, 0.0]]))


def test_no_rows() -> None:
    assert replaced(torch.randn(2, 3, 0, 4), torch.randn(2, 3, 0, 4)).shape == (2, 0)


def test_compiles_into_one_graph() -> None:
    stored, new = torch.randn(2, 1, 2, 3, 4)

    def step(stored: Tensor, new: Tensor) -> Tensor:
        return replace_and_compare(stored, 2 * new) + stored.sum()

    twin = stored.clone()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)(twin, new)
    torch.testing.assert_close(compiled, step(stored, new))
    assert torch.equal(twin, stored)
