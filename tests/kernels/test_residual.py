"""The stored residual: exact to the bit in its default precision."""

from typing import Any

import pytest
import torch
from kernel_layouts import LAYOUTS, like

from diffcache.kernels.dispatch import SWITCH
from diffcache.kernels.residual import store_residual, subtract, wide

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout: str, compare: Any) -> None:
    output = LAYOUTS[layout]()
    for base in (like(output), torch.randn(output.shape)):
        residual = compare(subtract, output, base, torch.float64)
        assert residual.stride() == subtract.reference(output, base, torch.float64).stride()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stored", [*DTYPES, torch.float64], ids=str)
def test_any_dtype(dtype: torch.dtype, stored: torch.dtype, compare: Any) -> None:
    output, base = (torch.randn(3, 333).to(dtype) for _ in range(2))
    compare(subtract, output, base, stored)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernels", ["triton", "reference"])
def test_base_plus_residual_is_the_output_to_the_bit(
    dtype: torch.dtype, kernels: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, kernels)
    output, base = (50 * torch.randn(7, 65)).to(dtype), torch.randn(7, 65).to(dtype)
    residual = store_residual(output, base)
    assert residual.dtype == wide(output)
    assert torch.equal((residual + base).to(dtype), output)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_an_output_without_base_is_copied(dtype: torch.dtype | None, device: torch.device) -> None:
    output = torch.randn(3, 4)
    stored = store_residual(output, None, dtype)
    assert stored.dtype == (dtype or torch.float32)
    assert stored.data_ptr() != output.data_ptr()
    assert torch.equal(stored, output.to(stored.dtype))


def test_an_empty_residual(compare: Any) -> None:
    compare(subtract, torch.randn(0, 3), torch.randn(0, 3), torch.float32)
