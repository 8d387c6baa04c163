"""Mean absolute differences equal their reference for any layout, dtype and size, with the same digits every time."""

from typing import Any

import pytest
import torch
from support.kernel_layouts import LAYOUTS, like
from torch import Tensor

from diffcache.kernels.relative_l1 import l1_means, mean_abs, relative_l1, secant_means

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout: str, compare: Any) -> None:
    a = LAYOUTS[layout]()
    compare(l1_means, a, like(a))
    compare(l1_means, a, torch.randn(a.shape))  # laid out otherwise
    compare(mean_abs, a, like(a))
    compare(mean_abs, a)
    compare(secant_means, a, like(a), like(a), like(a))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dtype(dtype: torch.dtype, compare: Any) -> None:
    a, b, x, y = (torch.randn(3, 333).to(dtype) for _ in range(4))
    compare(l1_means, a, b)
    compare(secant_means, x, y, a, b)


def test_sums_of_bf16_are_taken_in_fp32(compare: Any) -> None:
    a = torch.ones(40_000, dtype=torch.bfloat16)
    assert compare(l1_means, a, 2 * a).tolist() == [1.0, 2.0]


def test_programs_take_several_tiles_each(compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from diffcache.kernels import relative_l1_triton

    monkeypatch.setattr(relative_l1_triton, "PROGRAMS", 2)
    compare(secant_means, *(torch.randn(3, 4001) for _ in range(4)))


def test_latent_and_output_may_differ_in_shape(compare: Any) -> None:
    compare(secant_means, torch.randn(2, 5), torch.randn(2, 5), torch.randn(2, 4, 3), torch.randn(2, 4, 3))


def test_the_same_digits_every_time(device: torch.device, triton: None) -> None:
    a, b = torch.randn(2, 3, 5001)
    assert torch.equal(l1_means(a, b), l1_means(a, b))


def test_nan_shows(compare: Any) -> None:
    a = torch.randn(5000)
    a[4321] = torch.nan
    assert compare(l1_means, a, a.nan_to_num()).isnan().tolist() == [True, False]


def test_shapes_must_agree(device: torch.device, triton: None) -> None:
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match="give tensors of one shape"):
        l1_means(torch.randn(4, 3), torch.randn(3))


def test_nothing_has_no_mean(compare: Any) -> None:
    assert compare(l1_means, torch.randn(0, 3), torch.randn(0, 3)).isnan().all()


def test_addresses_beyond_32_bits(device: torch.device, triton: None) -> None:
    stride = 2**30 + 16
    memory = torch.empty(2 * stride + 64, dtype=torch.int8)  # of which three rows are touched
    rows = memory.as_strided((3, 64), (stride, 1))
    rows.copy_(torch.arange(3)[:, None])
    assert mean_abs(rows).item() == 1.0


def test_relative_change(device: torch.device) -> None:
    b = torch.randn(4, 5)
    assert relative_l1(1.5 * b, b).item() == pytest.approx(0.5, rel=1e-6)
    assert relative_l1(b, torch.zeros_like(b)).isfinite()


def test_compiles_into_one_graph(device: torch.device, triton: None) -> None:
    def change(a: Tensor, b: Tensor) -> Tensor:
        return relative_l1(2 * a, b) + mean_abs(a)

    a, b = torch.randn(2, 6, 7)
    compiled = torch.compile(change, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(a, b), change(a, b))
