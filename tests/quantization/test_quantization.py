"""Quantised weights: through torchao, all or nothing, put back where they were kept, and told by schedules and reports."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import bitsandbytes
import gguf
import pytest
import torch
from diffusers import BitsAndBytesConfig, FluxTransformer2DModel, PipelineQuantizationConfig, TorchAoConfig
from diffusers.quantizers.gguf.utils import GGUFParameter
from peft import LoraConfig
from support.harness import reference, render
from torch import Tensor, nn
from torchao.quantization import (
    FqnToConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8StaticActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MappingType,
    PerGroup,
)
from transformers import CLIPTextConfig, CLIPTextModel
from zoo.pipelines import CASES

from diffcache import ConfigError, ScheduleError, TargetError, accelerate, report, restore
from diffcache.host.weight_formats import is_quantised, quantization_of, weight_bytes
from diffcache.prediction.correctors import GAIN, SHIFT, WEIGHTS, coefficient_name
from diffcache.quantization import rules, with_bitsandbytes
from diffcache.quantization.folding import can_fold, fold
from diffcache.quantization.weights import quantised

NAME = "FluxPipeline"
QKV = "transformer_blocks.0.attn.to_q"


def quantised_layers(module: nn.Module) -> set[str]:
    return {name.removesuffix(".weight") for name, p in module.named_parameters() if is_quantised(p)}


@pytest.mark.parametrize("way", ["int8", "int8-weight-only", "float8-weight-only"])
@pytest.mark.parametrize("name", [NAME, "StableDiffusionPipeline", "WanPipeline-two-experts"])
def test_a_quantised_pipeline_runs_and_is_put_back_to_the_bit(name: str, way: str) -> None:
    pipe = CASES[name].build()
    denoisers = [getattr(pipe, part) for part in CASES[name].denoisers]
    render(pipe, name)
    residue = [{key for m in d.modules() for key in m.__dict__} for d in denoisers]
    configs, before = [dict(d.config) for d in denoisers], [weight_bytes(d) for d in denoisers]
    accelerate(pipe, "uniform", interval=1, quantize=way, keep_original=True)
    picture = render(pipe, name)
    assert picture.isfinite().all()
    assert not torch.equal(picture, reference(name))
    assert set(report(pipe).records[0].quantization) == set(CASES[name].denoisers)
    assert all(weight_bytes(d) < bytes_before for d, bytes_before in zip(denoisers, before, strict=True))
    restore(pipe)
    assert torch.equal(render(pipe, name), reference(name))
    assert [dict(d.config) for d in denoisers] == configs
    assert [{key for m in d.modules() for key in m.__dict__} for d in denoisers] == residue


def test_what_embeds_modulates_ends_or_convolves_is_left_and_why_is_said() -> None:
    pipe = CASES["StableDiffusionPipeline"].build()
    accelerate(pipe, quantize="int8")
    found = quantised[pipe.unet]
    assert quantised_layers(pipe.unet) == set(found.layers)
    assert found.left["conv_in"] == "torchao has no convolutions"
    assert found.left["time_embedding.linear_1"] == "embeds or modulates"
    flux = CASES[NAME].build()
    accelerate(flux, quantize="int8")
    assert quantised[flux.transformer].left["proj_out"] == "at an end of the denoiser"
    assert "transformer_blocks.0.norm1.linear" in quantised[flux.transformer].left
    assert QKV in quantised[flux.transformer].layers
    assert "left: at an end of the denoiser" in str(quantised[flux.transformer])


def test_layers_that_torchao_refuses_are_left() -> None:
    pipe = CASES["StableDiffusionPipeline"].build()  # its layers have 8, 16, 32 and 64 inputs
    accelerate(pipe, quantize=IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16)))
    found = quantised[pipe.unet]
    assert found.layers
    sizes = {pipe.unet.get_submodule(p).in_features for p, why in found.left.items() if "torchao:" in why}
    assert sizes == {8}
    assert render(pipe, "StableDiffusionPipeline").isfinite().all()


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ({r"to_q$": "int8", "_default": None}, lambda path: path.endswith("to_q")),
        ({r"to_q$": None, "_default": "int8"}, lambda path: not path.endswith("to_q")),
        ({r"^proj_out$": Int8WeightOnlyConfig()}, lambda path: path == "proj_out"),
        (
            TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=["transformer_blocks.0"]),
            lambda path: not path.startswith("transformer_blocks.0."),
        ),
        (FqnToConfig({f"{QKV}": Int8WeightOnlyConfig(), "re:.*to_v": None}), lambda path: path == QKV),
    ],
    ids=["only", "all but", "an end", "TorchAoConfig", "FqnToConfig"],
)
def test_overrides_choose_layers(way: Any, expected: Any) -> None:
    pipe = CASES[NAME].build()
    accelerate(pipe, quantize=way)
    layers = quantised_layers(pipe.transformer)
    assert layers
    assert all(expected(path) for path in layers)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("int3", "must be one of int8, int8-asymmetric"),
        (8, "must be one of"),
        ({"(": "int8"}, "no regular expression"),
        (Int8StaticActivationInt8WeightConfig(torch.ones(1, 1)), "fixes the activations' scales"),
        ({"nothing of that name": "int8"}, "no layer of FluxTransformer2DModel can be quantised here"),
        ({}, r'not asked for\): name layers by a pattern .*, or all others by "_default"\.$'),
        ({"nothing of that name": "int8"}, "name layers by a pattern that is found in their paths"),
        pytest.param(
            "float8",
            "compute capability",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="it may work here"),
        ),
    ],
)
def test_what_cannot_be_quantised_is_refused_and_leaves_all_as_it_was(way: Any, message: str) -> None:
    pipe = CASES[NAME].build()
    with pytest.raises(ConfigError, match=message):
        accelerate(pipe, quantize=way)
    assert_untouched(pipe)


def assert_untouched(pipe: Any) -> None:
    assert pipe.transformer not in quantised
    assert not quantised_layers(pipe.transformer)
    assert torch.equal(render(pipe, NAME), reference(NAME))


def test_an_error_half_way_puts_the_originals_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, count = CASES[NAME].build(), iter(range(100))
    from torchao import quantization

    real = quantization.quantize_

    def failing(layer: nn.Module, config: Any) -> None:
        if next(count) == 5:
            raise RuntimeError("out of memory")
        real(layer, config)

    monkeypatch.setattr(quantization, "quantize_", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        accelerate(pipe, quantize="int8")
    assert_untouched(pipe)
    monkeypatch.undo()

    def unwritable(*args: Any, **kwargs: Any) -> None:
        raise TypeError("not JSON serializable")

    monkeypatch.setattr(FluxTransformer2DModel, "register_to_config", unwritable)
    with pytest.raises(TypeError, match="not JSON"):
        accelerate(pipe, quantize="int8")
    monkeypatch.undo()
    assert_untouched(pipe)
    with pytest.raises(ConfigError, match="no method"):
        accelerate(pipe, "no such method", quantize="int8")
    assert_untouched(pipe)
    with pytest.raises(TargetError, match="pass a Diffusers pipeline"):
        accelerate(object(), quantize="int8")


def test_options_that_say_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="pass quantize= as well"):
        accelerate(CASES[NAME].build(), keep_original=True)


def test_restore_says_that_weights_stay_and_a_second_time_they_are_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipe = CASES[NAME].build()
    accelerate(pipe, "uniform", interval=1, quantize="int8")
    picture = render(pipe, NAME)
    with caplog.at_level(logging.WARNING, "diffcache"):
        restore(pipe)
    assert "weights stay quantised" in caplog.text
    assert torch.equal(render(pipe, NAME), picture)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "diffcache"):
        accelerate(pipe, "uniform", interval=1, quantize="int8-weight-only", keep_original=True)
    assert caplog.text.count("is quantised already") == 1
    assert torch.equal(render(pipe, NAME), picture)


def test_a_denoiser_that_another_pipeline_uses_stays_quantised() -> None:
    pipe, other = CASES[NAME].build(), CASES[NAME].build()
    other.transformer = pipe.transformer
    accelerate(pipe, "uniform", interval=1, quantize="int8", keep_original=True)
    accelerate(other, "uniform", interval=1)
    picture = render(other, NAME)
    restore(pipe)
    assert torch.equal(render(other, NAME), picture)
    restore(other)
    assert torch.equal(render(other, NAME), reference(NAME))


def test_adapters_after_quantising_do_not_stand_in_the_way() -> None:
    pipe = CASES[NAME].build()
    accelerate(pipe, "uniform", interval=1, quantize="int8", keep_original=True)
    picture = render(pipe, NAME)
    pipe.transformer.add_adapter(LoraConfig(r=4, target_modules=["to_q", "to_v"], init_lora_weights=False))
    assert not torch.equal(render(pipe, NAME), picture)
    pipe.transformer.delete_adapters("default")
    assert torch.equal(render(pipe, NAME), picture)
    restore(pipe)
    assert torch.equal(render(pipe, NAME), reference(NAME))


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_copies_are_quantised_and_know_nothing_of_the_originals(duplicate: Any) -> None:
    pipe = CASES[NAME].build()
    accelerate(pipe, "uniform", interval=1, quantize="int8", keep_original=True)
    other = duplicate(pipe)
    picture = render(pipe, NAME)
    restore(pipe)
    assert torch.equal(render(other, NAME), picture)
    assert quantization_of(other.transformer) is not None
    assert other.transformer not in quantised


class TwoLayers(nn.Sequential):
    """A denoiser whose layers are children 0 and 1."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) + t


@pytest.mark.parametrize("kind", ["GGUF", "bitsandbytes", "torchao"])
def test_what_is_quantised_already_is_left_alone(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    net = TwoLayers(nn.Linear(32, 32), nn.Linear(32, 32))
    weight = net[0].weight.data
    if kind == "GGUF":
        net[0].weight = GGUFParameter(weight, quant_type=gguf.GGMLQuantizationType.F16)
    elif kind == "bitsandbytes":
        net[0].weight = bitsandbytes.nn.Params4bit(weight, quant_type="nf4")
    else:
        accelerate(net, quantize={"0": "int8"})
        restore(net)
    kept = net[0].weight
    caplog.clear()
    with caplog.at_level(logging.WARNING, "diffcache"):
        accelerate(net, quantize="int8")
    assert "denoiser is quantised already (1 x" in caplog.text
    assert net[0].weight is kept
    assert not is_quantised(net[1].weight)


@pytest.mark.slow
def test_diffusers_saves_and_loads_what_was_quantised_here(tmp_path: Path) -> None:
    pipe = CASES[NAME].build()
    accelerate(pipe, "uniform", interval=2, quantize="int8")
    picture = render(pipe, NAME)
    schedule = report(pipe).to_schedule()
    assert set(schedule.quantization) == {"transformer"}
    pipe.transformer.save_pretrained(tmp_path / "model")
    schedule.save_pretrained(tmp_path / "schedule")
    code = (
        "import sys, torch; torch.set_num_threads(1); sys.path[:0] = ['tests']\n"
        "from zoo.pipelines import CASES\n"
        "from diffusers import FluxTransformer2DModel; from diffcache import Schedule, accelerate\n"
        f"pipe = CASES[{NAME!r}].build(); folder = {str(tmp_path)!r}\n"
        "pipe.transformer = FluxTransformer2DModel.from_pretrained(folder + '/model', torch_dtype=torch.float32)\n"
        "accelerate(pipe, folder + '/schedule')\n"
        f"torch.save(CASES[{NAME!r}].render(pipe, 0, 6), folder + '/picture.pt')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    # the same weights to the bit, but int8 products round by how they lie in memory
    torch.testing.assert_close(torch.load(tmp_path / "picture.pt"), picture, atol=2e-3, rtol=0)


def test_stale_corrections_are_dropped_and_the_ticks_stay() -> None:
    pipe = CASES[NAME].build()
    accelerate(pipe, "uniform", interval=2)
    picture = render(pipe, NAME)
    schedule = report(pipe).to_schedule()
    channels = pipe.transformer.config.in_channels
    corrections = {
        coefficient_name("transformer", "all", 0, kind): torch.full((6, channels), 1.5)
        for kind in (GAIN, SHIFT)
    }
    fitted = replace(schedule, quantization={"transformer": "1 x SomeTensor (0)"}, corrections=corrections)
    fitted = replace(fitted, fitted_with=fitted.fingerprint())
    accelerate(pipe, fitted)
    with pytest.warns(UserWarning, match=r"fitted on weights in 1 x SomeTensor \(0\), and these are plain"):
        assert torch.equal(render(pipe, NAME), picture)
    accelerate(pipe, replace(fitted, quantization={}, fitted_with=None))
    with pytest.warns(UserWarning, match="other decisions or another quantisation"):
        assert torch.equal(render(pipe, NAME), picture)


def test_corrections_of_layers_are_folded_in_and_taken_out() -> None:
    pipe = CASES[NAME].build()
    accelerate(pipe, "uniform", interval=1, quantize="int8", keep_original=True)
    picture = render(pipe, NAME)
    schedule = report(pipe).to_schedule()
    restore(pipe)
    size = pipe.transformer.get_submodule(QKV).out_features
    corrections = {
        coefficient_name(f"transformer.{QKV}", WEIGHTS, 0, GAIN): torch.full((size,), 1.1),
        coefficient_name(f"transformer.{QKV}", WEIGHTS, 0, SHIFT): torch.full((size,), 0.1),
    }
    fitted = replace(schedule, corrections=corrections, fitted_with=schedule.fingerprint())
    accelerate(pipe, fitted, quantize="int8", keep_original=True)
    assert not torch.equal(render(pipe, NAME), picture)
    assert len(quantised[pipe.transformer].undo) == 1
    corrected = render(pipe, NAME)
    accelerate(pipe, fitted, quantize="int8")  # not folded in twice
    assert torch.equal(render(pipe, NAME), corrected)
    elsewhere = {name.replace(QKV, "nowhere"): tensor for name, tensor in corrections.items()}
    with pytest.raises(ScheduleError, match="no layer nowhere"):
        accelerate(pipe, replace(fitted, corrections=elsewhere), quantize="int8")
    assert torch.equal(render(pipe, NAME), corrected)
    restore(pipe)
    assert torch.equal(render(pipe, NAME), reference(NAME))
    accelerate(pipe, fitted, rectify=False, quantize="int8", keep_original=True)
    assert torch.equal(render(pipe, NAME), picture)
    restore(pipe)
    with pytest.raises(ScheduleError, match="no layer nowhere"):
        accelerate(pipe, replace(fitted, corrections=elsewhere), quantize="int8")
    assert_untouched(pipe)


WAYS = {
    "plain": None,
    "int8": Int8DynamicActivationInt8WeightConfig(),
    "int8-asymmetric": Int8DynamicActivationInt8WeightConfig(act_mapping_type=MappingType.ASYMMETRIC),
    "int8-weight-only": Int8WeightOnlyConfig(),
    "int4 in groups": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16)),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_folding_equals_the_explicit_epilogue(way: str, dtype: torch.dtype) -> None:
    from torchao.quantization import quantize_

    torch.manual_seed(0)
    layer = nn.Linear(32, 48).to(dtype)
    if WAYS[way] is not None:
        quantize_(layer, WAYS[way])
    gain, shift, x = torch.rand(48) + 0.5, torch.randn(48), torch.randn(2, 7, 32, dtype=dtype)
    assert can_fold(layer)
    with torch.no_grad():
        before = layer(x)
        undo = fold(layer, (gain, shift))
        expected = gain * before.float() + shift
        eps = torch.finfo(dtype).eps * float(expected.abs().max())
        torch.testing.assert_close(layer(x).float(), expected, atol=4 * eps, rtol=0)
        undo()
        assert torch.equal(layer(x), before)


def test_folding_into_a_convolution_scales_its_bias_too() -> None:
    layer, gain, shift = nn.Conv2d(3, 5, 3), torch.rand(5) + 0.5, torch.randn(5)
    x: Tensor = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        expected = gain[:, None, None] * layer(x) + shift[:, None, None]
        fold(layer, (gain, shift))
        torch.testing.assert_close(layer(x), expected)
    assert not can_fold(nn.Linear(3, 5, bias=False))
    assert not can_fold(nn.ReLU())


def test_the_same_formats_are_called_the_same_and_others_are_not() -> None:
    def kind(way: Any) -> str:
        model = FluxTransformer2DModel.from_config(CASES[NAME].build().transformer.config)
        accelerate(model, quantize=way)
        found = quantization_of(model)
        assert found is not None
        return found

    asymmetric = Int8DynamicActivationInt8WeightConfig(act_mapping_type=MappingType.ASYMMETRIC)
    assert kind("int8") == kind(Int8DynamicActivationInt8WeightConfig())
    assert kind("int8-asymmetric") == kind(asymmetric) != kind("int8")
    assert "with activations" in kind("int8")
    assert len({kind("int8"), kind("int8-weight-only"), kind({"to_q$": "int8"})}) == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU says")
@pytest.mark.parametrize("way", ["int4", "int4-hqq", "mxfp8", "nvfp4", "nvfp4-weight-only"])
def test_formats_that_this_machine_cannot_run_are_refused_in_a_sentence(way: str) -> None:
    pipe = CASES[NAME].build()
    with pytest.raises(
        ConfigError, match=rf"quantize='{way}' needs a GPU of compute capability .*'int8' runs everywhere"
    ):
        accelerate(pipe, quantize=way)
    assert_untouched(pipe)


@pytest.mark.parametrize("way", rules.NAMED)
def test_every_name_makes_a_config_of_torchao(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_capability", lambda: (10, 0))
    made = rules.Rules(way).default
    assert type(made).__name__ == rules.NAMED[way].config
    assert getattr(made, "set_inductor_config", False) is False


def test_inductor_still_fuses_the_scale_into_the_product() -> None:
    from torch._inductor import config

    config.force_fuse_int_mm_with_mul = False
    rules.Rules("int8")
    assert config.force_fuse_int_mm_with_mul


def test_a_config_for_a_whole_pipeline_quantises_the_denoisers_that_it_names() -> None:
    pipe = CASES[NAME].build()
    accelerate(
        pipe,
        quantize=PipelineQuantizationConfig(
            quant_mapping={"transformer": TorchAoConfig(Int8WeightOnlyConfig())}
        ),
    )
    assert QKV in quantised_layers(pipe.transformer)
    other = CASES[NAME].build()
    with pytest.raises(
        ConfigError, match="it names nothing of this target: name transformer or another network"
    ):
        accelerate(
            other,
            quantize=PipelineQuantizationConfig(
                quant_mapping={"text_encoder_9": TorchAoConfig(Int8WeightOnlyConfig())}
            ),
        )
    assert_untouched(other)


def test_text_encoders_are_quantised_where_they_are_named_and_put_back() -> None:
    pipe = CASES[NAME].build()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    encoder = CLIPTextModel(CLIPTextConfig(vocab_size=50, **sizes)).eval()
    pipe.register_modules(text_encoder=encoder)
    words = torch.arange(8)[None]
    before = encoder(words).last_hidden_state
    asked = PipelineQuantizationConfig(quant_mapping={"text_encoder": TorchAoConfig(Int8WeightOnlyConfig())})
    accelerate(pipe, "uniform", quantize=asked, keep_original=True)
    assert any(path.endswith("q_proj") for path in quantised_layers(encoder))
    assert not quantised_layers(pipe.transformer)
    assert 0 < float((encoder(words).last_hidden_state - before).detach().abs().max()) < 0.1
    restore(pipe)
    assert torch.equal(encoder(words).last_hidden_state, before)


BITSANDBYTES = {
    "8 bits": BitsAndBytesConfig(load_in_8bit=True),
    "4 bits": BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        llm_int8_skip_modules=["to_v"],
    ),
}


@pytest.mark.parametrize("config", BITSANDBYTES.values(), ids=BITSANDBYTES)
def test_bitsandbytes_quantises_a_loaded_model_as_its_config_says(
    config: BitsAndBytesConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On processors with AVX512-BF16 bitsandbytes packs weights in blocks, for which these are too small.
    monkeypatch.setattr(bitsandbytes.nn.modules, "has_avx512bf16", lambda: False)
    pipe = CASES[NAME].build()
    original = pipe.transformer.get_submodule(QKV)
    weight, before = original.weight.detach().clone(), dict(pipe.transformer.config)
    accelerate(pipe, "uniform", interval=1, quantize=config, keep_original=True)
    layers = quantised_layers(pipe.transformer)
    assert QKV in layers
    assert ("transformer_blocks.0.attn.to_v" in layers) == config.load_in_8bit
    assert not {path for path in layers if "norm" in path or "." not in path}
    layer = pipe.transformer.get_submodule(QKV)
    kind = bitsandbytes.nn.Linear8bitLt if config.load_in_8bit else bitsandbytes.nn.Linear4bit
    assert type(layer) is kind
    x = torch.randn(3, original.in_features, generator=torch.Generator().manual_seed(0))
    exact = nn.functional.linear(x, weight, original.bias)
    loss = float((layer(x) - exact).norm() / exact.norm())
    assert 0 < loss < (0.02 if config.load_in_8bit else 0.15)
    assert not torch.equal(render(pipe, NAME), reference(NAME))
    assert report(pipe).records[0].quantization
    pipe.transformer.save_pretrained(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert told["load_in_8bit"] == config.load_in_8bit
    assert not layers & set(told["llm_int8_skip_modules"])
    assert "proj_out" in told["llm_int8_skip_modules"]
    restore(pipe)
    assert pipe.transformer.get_submodule(QKV) is original
    assert torch.equal(original.weight, weight)
    assert dict(pipe.transformer.config) == before
    assert torch.equal(render(pipe, NAME), reference(NAME))


def test_convolutions_are_said_to_be_left_by_the_library_that_quantises() -> None:
    pipe = CASES["StableDiffusionPipeline"].build()
    accelerate(pipe, quantize=BitsAndBytesConfig(load_in_8bit=True))
    left = quantised[pipe.unet].left
    assert left["conv_in"] == "bitsandbytes has no convolutions"
    assert not [why for why in left.values() if "torchao" in why]


def test_a_layer_that_a_model_holds_under_two_names_is_replaced_and_put_back_under_both() -> None:
    net = TwoLayers(nn.Linear(32, 32), nn.Linear(32, 32))
    layer = net.again = net[0]
    weight = layer.weight
    accelerate(net, quantize={"0": BitsAndBytesConfig(load_in_8bit=True)}, keep_original=True)
    assert isinstance(net[0], bitsandbytes.nn.Linear8bitLt)
    assert net.again is net[0]
    restore(net)
    assert net[0] is net.again is layer
    assert layer.weight is weight


def test_a_bitsandbytes_config_that_cannot_be_served_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = CASES[NAME].build()
    with pytest.raises(ConfigError, match="asks for nothing: pass load_in_4bit=True"):
        accelerate(pipe, quantize=BitsAndBytesConfig())
    with pytest.raises(ConfigError, match="is for all layers of a model"):
        accelerate(pipe, quantize={"attn": BitsAndBytesConfig(load_in_8bit=True), "_default": "int8"})
    monkeypatch.setattr(with_bitsandbytes, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs bitsandbytes: pip install bitsandbytes"):
        accelerate(pipe, quantize=BitsAndBytesConfig(load_in_8bit=True))
    assert_untouched(pipe)


def test_after_sequential_offload_quantising_is_refused_in_a_sentence() -> None:
    pipe = CASES[NAME].build()
    pipe.transformer.to("meta")  # where accelerate's hooks keep a module whose weights are in host memory
    with pytest.raises(ConfigError, match="sequential offload is on: quantise first"):
        accelerate(pipe, quantize="int8")
