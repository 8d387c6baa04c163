"""Some tokens of a call are what they are when all are computed, on every denoiser of the zoo; others are refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from support.token_rows import AfterTheFirst, frozen, quarters
from zoo.denoisers import CASES

from diffcache import accelerate, denoising_run, report
from diffcache.recipes.uniform import UniformConfig
from diffcache.tokens.layout import rows_of_samples

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
def documented() -> dict[str, str]:
    """The cases that docs/row_coverage.md says are refused, with the reason."""
    rows = [line.split("|")[1:-1] for line in COVERAGE.read_text().splitlines() if line.startswith("| ")]
    return {name: reason.strip() for names, reason in rows[1:] for name in names.strip().split("; ")}


@pytest.mark.parametrize("name", QUICK)
def test_some_tokens_of_the_same_call_give_the_same_output(name):
    ran = frozen(CASES[name])
    assert ran.mark == "%"
    assert ran.error <= 1e-6
    assert 0 < ran.work < 1
    assert name not in documented()


@pytest.mark.parametrize("name", REFUSED)
def test_a_denoiser_that_mixes_tokens_is_refused_with_its_reason(name):
    ran = frozen(CASES[name])
    assert ran.mark == "#"
    assert REFUSED[name] in ran.reason
    assert ran.error == 0
    assert REFUSED[name] in documented()[name]


@pytest.mark.slow
def test_at_least_59_classes_of_the_zoo_can_compute_some_tokens_and_the_table_names_them():
    ran = {name: frozen(case) for name, case in CASES.items()}
    able = {name.split("-")[0] for name, one in ran.items() if one.mark == "%"}
    assert len(able) >= 59
    assert not [name for name, one in ran.items() if one.mark == "%" and one.error > 1e-6]
    assert not [name for name, one in ran.items() if one.mark == "#" and not one.reason]
    assert {name for name, one in ran.items() if one.mark == "#"} == documented().keys(), (
        "run scripts/tables/row_coverage.py"
    )


def test_keys_and_values_of_other_tokens_are_needed(monkeypatch):
    from diffcache.store.key_values import KeyValues

    kept = KeyValues.get
    monkeypatch.setattr(KeyValues, "get", lambda *args: tuple(t.zero_() for t in kept(*args)))
    assert frozen(CASES["FluxTransformer2DModel"]).error > 1e-2


OF_THEIR_OWN = {
    "FluxTransformer2DModel": (4 + 6) / (16 + 6),  # a quarter of the tokens, and those of the text
    "SD3Transformer2DModel": None,
    "QwenImageTransformer2DModel": None,
    "PixArtTransformer2DModel": None,
}


@pytest.mark.parametrize("name", OF_THEIR_OWN)
@pytest.mark.parametrize("batch", [2, 4])
def test_samples_have_tokens_of_their_own(name, batch):
    ran = frozen(CASES[name], batch=batch, source=quarters)
    assert ran.mark == "%"
    assert ran.error <= 1e-6
    assert OF_THEIR_OWN[name] is None or ran.work == pytest.approx(OF_THEIR_OWN[name])


@pytest.mark.slow
def test_samples_have_tokens_of_their_own_on_every_denoiser():
    ran = {name: frozen(case, batch=2, source=quarters) for name, case in CASES.items()}
    assert sum(one.mark == "%" for one in ran.values()) >= 59
    assert not [name for name, one in ran.items() if one.mark == "%" and one.error > 1e-6]


def test_tokens_of_samples_are_computed_together_where_that_is_hardly_more():
    chosen = torch.zeros(3, 10, dtype=torch.bool)
    chosen[0, :4] = chosen[1, :5] = chosen[2, :4] = True
    (together,) = rows_of_samples(chosen, apart=True)
    assert together.samples is None
    assert together.rows.rows.tolist() == [0, 1, 2, 3, 4]
    chosen[1] = False
    chosen[1, 9] = True
    apart = {one.samples: one.rows.rows.tolist() for one in rows_of_samples(chosen, apart=True)}
    assert apart == {(1,): [9], (0, 2): [0, 1, 2, 3]}
    (together,) = rows_of_samples(chosen, apart=False)
    assert together.rows.rows.tolist() == [0, 1, 2, 3, 9]
    (nothing,) = rows_of_samples(torch.zeros(2, 5, dtype=torch.bool), apart=True)
    assert nothing.rows.rows.tolist() == [0]


def test_guidance_passes_may_differ_in_their_number_of_samples():
    case = CASES["SD3Transformer2DModel"]
    net = case.build()
    moments = case.time_values(4)[1:3]
    both = case.at(case.inputs(torch.Generator().manual_seed(0), 4), *moments)
    one = {name: x[:2] if isinstance(x, torch.Tensor) and len(x) == 4 else x for name, x in both.items()}
    accelerate(net, AfterTheFirst(base=UniformConfig(interval=1, tail_steps=0), source=quarters))
    with torch.no_grad(), denoising_run(net, 2) as run:
        outputs = []
        for tick in range(2):
            run.begin_step(tick)
            outputs.append([case.output(net(**inputs))[0] for inputs in (both, one)])
    assert [call.mark for call in report(net).calls] == ["#", "#", "%", "%"]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*outputs, strict=True))


def test_an_adapter_is_part_of_what_is_computed():
    case = CASES["FluxTransformer2DModel"]
    net = case.build()
    net.add_adapter(LoraConfig(r=4, target_modules=["to_q", "to_k", "to_v"], init_lora_weights=False))
    plain, ran = frozen(case), frozen(case, net=net)
    assert ran.mark == plain.mark == "%"
    assert ran.error <= 1e-6


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
