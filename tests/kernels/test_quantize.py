"""Eight-bit storage: the error stays within its bound, and values that are not finite can be seen in the result."""

from typing import Any

import pytest
import torch
from torch import Tensor

from diffcache.kernels.dispatch import FP8, SWITCH
from diffcache.kernels.extrapolate import extrapolate
from diffcache.kernels.quantize import quantize_feature, quantize_rows

EIGHT_BITS = [torch.int8, FP8]
ROUNDING = 1e-6


def read_back(x: Tensor, dtype: torch.dtype, base: Tensor | None = None) -> Tensor:
    return extrapolate([quantize_feature(x, base, dtype)], [1.0], None, torch.float32)


def representable(*shape: int) -> Tensor:
    """Numbers that e4m3 holds exactly at a scale of 1: the interpreter's conversion to e4m3 loses carries."""
    x = torch.randn(*shape).mul(32).clamp(-400, 400).to(FP8).float()
    x[..., :1] = 448.0
    return torch.where(x.abs() < 1, 1.0, x)


@pytest.mark.parametrize("shape", [(1, 1), (7, 65), (2, 3, 1000), (2, 3, 5, 7)], ids=str)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_kernel_and_reference(shape: tuple[int, ...], given: torch.dtype, compare: Any) -> None:
    x = representable(*shape).to(given)
    for dtype in EIGHT_BITS:
        compare(quantize_rows, x, None, dtype)
    base = torch.full(shape, 3.0, dtype=given)
    compare(quantize_rows, x, base, torch.int8)


def test_gaps_are_skipped(compare: Any) -> None:
    x = representable(2, 9, 24)
    compare(quantize_rows, x[:, 2:7], x[:, 1:6].flip(1), torch.int8)
    compare(quantize_rows, x.transpose(1, 2), None, torch.int8)


@pytest.mark.parametrize("kernels", ["triton", "reference"])
def test_int8_is_off_by_half_a_level(
    kernels: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, kernels)
    x = torch.randn(40, 129) * torch.logspace(-20, 20, 40)[:, None]
    largest = x.abs().amax(-1, keepdim=True)
    assert ((read_back(x, torch.int8) - x).abs() <= largest * (1 / 254 + ROUNDING)).all()


def test_e4m3_is_off_by_a_sixteenth(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "triton" if device.type == "cuda" else "reference")
    x = torch.randn(40, 129) * torch.logspace(-6, 6, 129)
    largest = x.abs().amax(-1, keepdim=True)
    bound = torch.maximum(x.abs() / 16, largest / 458_752) + largest * ROUNDING
    assert ((read_back(x, FP8) - x).abs() <= bound).all()


@pytest.mark.parametrize("kernels", ["triton", "reference"])
@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
def test_what_is_not_finite_comes_back_as_nan(
    dtype: torch.dtype, kernels: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, kernels)
    x = torch.tensor([[1, torch.nan], [torch.inf, 0], [-torch.inf, 1], [0, 0], [1e-38, 0], [448, 2.0]])
    back = read_back(x, dtype)
    assert back[:3].isnan().all()
    assert (back[3:5].abs() <= 1e-30).all()
    assert back[5, 0] == 448


def test_the_residual_is_not_rounded_before(device: torch.device) -> None:
    x = torch.tensor([[1.0, 1.0078125]], dtype=torch.bfloat16)
    back = read_back(x, torch.int8, base=torch.full_like(x, 1.0))
    assert back[0].tolist() == pytest.approx([0, 0.0078125])


def test_nothing_to_quantize(compare: Any) -> None:
    assert compare(quantize_rows, torch.randn(0, 3), None, torch.int8)[1].shape == (0, 1)


def test_memory(device: torch.device) -> None:
    x = torch.randn(2, 64, 1024, dtype=torch.bfloat16)
    stored = quantize_feature(x)
    assert stored.values.nbytes * 2 == x.nbytes
    assert stored.scales.nbytes * 256 == stored.values.nbytes


def test_mistakes(device: torch.device) -> None:
    with pytest.raises(ValueError, match=r"use torch\.int8 or torch\.float8_e4m3fn"):
        quantize_feature(torch.randn(2, 2), dtype=torch.uint8)
    with pytest.raises(ValueError, match="split the last dimension"):
        quantize_feature(torch.zeros(1, 32769))
