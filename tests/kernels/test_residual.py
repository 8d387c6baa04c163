"""The stored residual: exact to the bit in its default precision."""

from typing import Any

import pytest
import torch
from support.kernel_layouts import LAYOUTS, like

from diffcache.kernels.dispatch import SWITCH
from diffcache.kernels.extrapolate import extrapolate
from diffcache.kernels.residual import Residual, keep_residual, store_residual, subtract, wide

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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernels", ["triton", "reference"])
def test_what_is_kept_reads_as_what_is_stored(
    dtype: torch.dtype, kernels: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held to the bit, and extrapolated one precision wider."""
    monkeypatch.setenv(SWITCH, kernels)
    calls = [((50 * torch.randn(7, 65)).to(dtype), torch.randn(7, 65).to(dtype)) for _ in range(2)]
    kept = [keep_residual(*call) for call in calls]
    stored = [store_residual(*call) for call in calls]
    output, base = calls[0]
    assert all(isinstance(residual, Residual) for residual in kept)
    assert torch.equal(extrapolate(kept[:1], [1.0], base, dtype), output)
    rounding = 2**-48 if wide(output) is torch.float64 else 2**-20
    torch.testing.assert_close(
        extrapolate(kept, [7 / 3, -4 / 3], None, torch.float64),
        extrapolate(stored, [7 / 3, -4 / 3], None, torch.float64),
        rtol=0,
        atol=200 * rounding,
    )


def test_what_is_kept_is_a_copy(device: torch.device) -> None:
    output, base = torch.randn(2, 3, 4)
    given = output.clone(), base.clone()
    kept = keep_residual(output, base), keep_residual(output, None)
    output.zero_(), base.zero_()
    assert torch.equal(extrapolate(kept[:1], [1.0], given[1], torch.float32), given[0])
    assert torch.equal(kept[1], given[0])


@pytest.mark.parametrize(
    ("output", "base"),
    [
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
        *((dtype, dtype) for dtype in DTYPES),
    ],
    ids=str,
)
def test_what_is_kept_takes_as_many_bytes_as_what_is_stored(
    output: torch.dtype, base: torch.dtype, device: torch.device
) -> None:
    call = torch.randn(3, 4).to(output), torch.randn(3, 4).to(base)
    kept = keep_residual(*call)
    tensor = kept.both if isinstance(kept, Residual) else kept
    assert tensor.nbytes == store_residual(*call).nbytes


def test_what_is_kept_has_its_elements_in_the_outputs_order(device: torch.device) -> None:
    output = torch.randn(2, 8, 5, 5).to(memory_format=torch.channels_last)
    value = extrapolate([keep_residual(output, torch.randn(2, 8, 5, 5))], [1.0], None, torch.float32)
    assert value.stride() == output.stride()
