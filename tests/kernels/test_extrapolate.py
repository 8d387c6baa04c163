"""The value of a reused call equals its reference for any predictor, base, correction and storage."""

import itertools
from typing import Any

import pytest
import torch
from support.kernel_layouts import LAYOUTS, like
from torch import Tensor

from diffcache.kernels.dispatch import FP8, SWITCH
from diffcache.kernels.extrapolate import Correction, extrapolate, weighted_sum
from diffcache.kernels.quantize import quantize_feature
from diffcache.kernels.residual import store_residual

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HOLD, LINEAR, QUADRATIC = [1.0], [7 / 3, -4 / 3], [3.1, -3.3, 1.2]
PLAIN = (None, None, -1, False)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout: str, compare: Any) -> None:
    features = [LAYOUTS[layout]() for _ in range(2)]
    for base in (None, like(features[0]), torch.randn(features[0].shape)):
        compare(weighted_sum, features, [], LINEAR, base, *PLAIN, torch.float32)


@pytest.mark.parametrize("weights", [HOLD, LINEAR, QUADRATIC, [1.0] * 6], ids=["hold", "1st", "2nd", "six"])
@pytest.mark.parametrize("stored", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_predictor_and_dtype(
    weights: list[float], stored: torch.dtype, dtype: torch.dtype, compare: Any
) -> None:
    features = [torch.randn(3, 333).to(stored) for _ in weights]
    compare(weighted_sum, features, [], weights, torch.randn(3, 333).to(dtype), *PLAIN, dtype)


def test_weights_keep_their_precision(compare: Any) -> None:
    features = [torch.randn(3, 33, dtype=torch.float64) for _ in range(2)]
    value = compare(weighted_sum, features, [], LINEAR, None, *PLAIN, torch.float64)
    expected = LINEAR[0] * features[0] + LINEAR[1] * features[1]
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("parts", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("precision", [torch.float32, torch.float64], ids=str)
def test_any_precision_of_the_sum(parts: torch.dtype, precision: torch.dtype, compare: Any) -> None:
    outputs = [torch.randn(3, 333).to(parts) for _ in range(4)]
    given = (outputs, [], [7 / 3, -7 / 3, -4 / 3, 4 / 3], outputs[1], *PLAIN, precision, precision)
    compare(weighted_sum, *given)


@pytest.mark.parametrize("shape", [(2, 5, 24), (2, 6, 3, 5), (2, 4, 3, 5, 6), (3, 7)], ids=str)
@pytest.mark.parametrize("quantized", [False, True], ids=["", "int8"])
def test_any_correction(shape: tuple[int, ...], quantized: bool, compare: Any) -> None:
    features, base = [torch.randn(shape) for _ in LINEAR], torch.randn(shape)
    scales: list[Tensor] = []
    if quantized:
        stored = [quantize_feature(feature) for feature in features]
        features, scales = [x.values for x in stored], [x.scales for x in stored]
    for channel_dim, of_value in itertools.product({1, 2, -1} & {*range(-1, len(shape))}, (False, True)):
        channels = shape[channel_dim]
        of_channel, of_sample = torch.rand(channels), torch.rand(shape[0], channels)
        for gain, shift in (
            (of_channel, of_channel),
            (of_sample, None),
            (None, of_channel),
            (of_channel, of_sample.half()),
        ):
            compare(
                weighted_sum, features, scales, LINEAR, base, gain, shift, channel_dim, of_value,
                torch.float32,
            )  # fmt: skip


def test_corrections_follow_their_formulas(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    feature, base, gain, shift = torch.randn(4, 2, 3, 4).unbind()
    gain, shift = gain[0, 0], shift[:, 0]
    for kernels in ("triton", "reference"):
        monkeypatch.setenv(SWITCH, kernels)
        cachequant = extrapolate([feature], HOLD, base, torch.float32, Correction(gain=gain, shift=shift))
        torch.testing.assert_close(cachequant, base + gain * feature + shift[:, None])
        ertacache = extrapolate(
            [feature], HOLD, base, torch.float32, Correction(gain=gain, shift=shift, of_value=True)
        )
        torch.testing.assert_close(ertacache, gain * (base + feature) + shift[:, None])


@pytest.mark.parametrize("dtype", [torch.int8, FP8], ids=str)
def test_quantized_features_are_read_where_they_lie(dtype: torch.dtype, compare: Any) -> None:
    stored = [quantize_feature(torch.randn(3, 7, 33), dtype=dtype) for _ in LINEAR]
    values, scales = [x.values for x in stored], [x.scales for x in stored]
    base = torch.randn(3, 7, 33, dtype=torch.bfloat16)
    compare(weighted_sum, values, scales, LINEAR, base, *PLAIN, torch.bfloat16)
    assert torch.equal(
        extrapolate(stored, LINEAR, base, torch.float32),
        weighted_sum(values, scales, LINEAR, base, *PLAIN, torch.float32),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernels", ["triton", "reference"])
def test_holding_a_still_input_is_exact(
    dtype: torch.dtype, kernels: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, kernels)
    base, output = torch.randn(2, 5, 9).to(dtype), (50 * torch.randn(2, 5, 9)).to(dtype)
    assert torch.equal(extrapolate([store_residual(output, base)], HOLD, base, dtype), output)


def test_a_view_of_the_input_is_read_in_place(compare: Any) -> None:
    latent = torch.randn(2, 36, 3, 5)
    compare(weighted_sum, [torch.randn(2, 16, 3, 5)], [], HOLD, latent[:, :16], *PLAIN, torch.float32)


def test_the_result_shares_no_memory(device: torch.device) -> None:
    feature = torch.randn(3, 4)
    value = extrapolate([feature], HOLD, None, torch.float32)
    value.zero_()
    assert feature.any()


def test_one_weight_for_each_feature(device: torch.device) -> None:
    with pytest.raises(ValueError, match="2 features need as many weights, not 1"):
        extrapolate([torch.zeros(2), torch.zeros(2)], [1.0], None, torch.float32)


@pytest.mark.parametrize("gain", [None, 2.0], ids=["plain", "corrected"])
def test_shapes_must_agree(gain: float | None, device: torch.device, triton: None) -> None:
    pytest.importorskip("triton")
    correction = Correction(gain=None if gain is None else torch.full((3,), gain))
    with pytest.raises(ValueError, match="give tensors of one shape"):
        extrapolate([torch.zeros(4, 3)], HOLD, torch.zeros(1, 3), torch.float32, correction)


def test_nothing_to_add_up(compare: Any) -> None:
    empty = torch.randn(0, 3)
    compare(weighted_sum, [empty], [], [1.0], empty, *PLAIN, torch.float32)


def test_compiles_into_one_graph(device: torch.device, triton: None) -> None:
    def step(x: Tensor, residual: Tensor) -> Tensor:
        return 2 * extrapolate([residual, x], LINEAR, x, torch.float32)

    x, residual = torch.randn(2, 6, 7)
    torch.testing.assert_close(
        torch.compile(step, backend="aot_eager", fullgraph=True)(x, residual), step(x, residual)
    )
