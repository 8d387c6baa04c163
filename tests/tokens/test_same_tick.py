"""Some tokens of a call are what they are when all are computed, on every denoiser of the zoo; others are refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from support.token_rows import frozen, quarters
from zoo.denoisers import CASES

QUICK = (
    "FluxTransformer2DModel",
    "QwenImageTransformer2DModel",
    "SD3Transformer2DModel",
    "PixArtTransformer2DModel",
    "ZImageTransformer2DModel",
    "Lumina2Transformer2DModel",
    "WanTransformer3DModel",
    "CogVideoXTransformer3DModel",
    "LTX2VideoTransformer3DModel",
    "Ideogram4Transformer2DModel",
    "JoyImageEditPlusTransformer3DModel",
    "StableAudioDiTModel",
    "StableAudio3DiTModel",
    "MiniMaxMusic3Transformer1DModel",
)
REFUSED = {
    "SanaTransformer2DModel": "cannot be called with some of the tokens",
    "LatteTransformer3DModel": "several dimensions",
    "UNet2DConditionModel": "several dimensions",
    "HunyuanVideoTransformer3DModel-i2v": "mixes tokens beside attention",
}


COVERAGE = Path(__file__).resolve().parents[2] / "docs" / "row_coverage.md"


@cache
def documented() -> dict[str, tuple[str, str]]:
    """By case what docs/row_coverage.md says: the verdict, and the reason of a refusal."""
    rows = [line.strip("| ").split(" | ") for line in COVERAGE.read_text().splitlines() if " | " in line]
    return {name: (verdict, reason.strip(" |")) for name, verdict, _, reason in rows[1:]}


@pytest.mark.parametrize("name", QUICK)
def test_some_tokens_of_the_same_call_give_the_same_output(name):
    ran = frozen(CASES[name])
    assert ran.mark == "%"
    assert ran.error <= 1e-6
    assert 0 < ran.work < 1
    assert documented()[name][0].startswith("yes")


@pytest.mark.parametrize("name", REFUSED)
def test_a_denoiser_that_mixes_tokens_is_refused_with_its_reason(name):
    ran = frozen(CASES[name])
    assert ran.mark == "#"
    assert REFUSED[name] in ran.reason
    assert ran.error == 0
    assert documented()[name][0] == "no"
    assert REFUSED[name] in documented()[name][1]


@pytest.mark.slow
def test_at_least_59_classes_of_the_zoo_can_compute_some_tokens_and_the_table_names_them():
    ran = {name: frozen(case) for name, case in CASES.items()}
    able = {name.split("-")[0] for name, one in ran.items() if one.mark == "%"}
    assert len(able) >= 59
    assert not [name for name, one in ran.items() if one.mark == "%" and one.error > 1e-6]
    assert not [name for name, one in ran.items() if one.mark == "#" and not one.reason]
    assert {name: one.mark == "%" for name, one in ran.items()} == {
        name: verdict.startswith("yes") for name, (verdict, _) in documented().items()
    }, "run scripts/tables/row_coverage.py"


def test_keys_and_values_of_other_tokens_are_needed(monkeypatch):
    from diffcache.store.key_values import KeyValues

    kept = KeyValues.get
    monkeypatch.setattr(KeyValues, "get", lambda *args: tuple(t.zero_() for t in kept(*args)))
    assert frozen(CASES["FluxTransformer2DModel"]).error > 1e-2


def test_samples_with_other_rows_are_computed_together():
    ran = frozen(CASES["FluxTransformer2DModel"], batch=2, source=quarters)
    assert ran.mark == "%"
    assert ran.error <= 1e-6
    assert ran.work == pytest.approx((8 + 6) / (16 + 6))  # both quarters, and six tokens of text


def test_two_guidance_passes_keep_their_own():
    ran = frozen(CASES["WanTransformer3DModel"], branches=2)
    assert ran.marks == {"0": "#%", "1": "#%"}
    assert ran.error <= 1e-6


@pytest.mark.parametrize(
    "options", [{"cache_dtype": "bfloat16"}, {"cache_dtype": "int8"}, {"cache_device": "cpu"}]
)
def test_formats_keep_keys_and_values_too(options):
    plain, ran = frozen(CASES["FluxTransformer2DModel"]), frozen(CASES["FluxTransformer2DModel"], **options)
    assert ran.mark == "%"
    assert ran.error <= 0.05
    assert ran.cache_bytes <= plain.cache_bytes
    if "cache_dtype" in options:
        assert ran.cache_bytes < 0.8 * plain.cache_bytes
        assert ran.error > 0


def test_nothing_is_left_in_the_denoiser_after_the_run():
    case = CASES["FluxTransformer2DModel"]
    net = case.build()
    before = {path: id(module.__class__) for path, module in net.named_modules()}
    inputs = case.at(case.inputs(torch.Generator().manual_seed(0), 1), *case.time_values(4)[1:3])
    with torch.no_grad():
        plain = case.output(net(**inputs))[0]
        frozen(case, net=net)
        again = case.output(net(**inputs))[0]
    assert torch.equal(plain, again)
    assert before == {path: id(module.__class__) for path, module in net.named_modules()}
