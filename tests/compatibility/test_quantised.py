"""A cache works on denoisers that another library has quantised, and keeps what their layers compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compatibility.levels import Cell, each_level, slow, verdict
from diffusers import FluxTransformer2DModel, TorchAoConfig
from support.harness import reference, render
from torch import nn
from zoo.pipelines import CASES

GROUP = "Quantised by others"
NAME = "FluxPipeline"


def linears(pipe: Any) -> list[tuple[nn.Module, str, nn.Linear]]:
    """Parent, name and layer of each linear layer of the denoiser."""
    return [
        (parent, name, layer)
        for parent in pipe.transformer.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, nn.Linear)
    ]


def torchao(kind: str) -> Callable[[Any], None]:
    quantization = pytest.importorskip("torchao.quantization", reason="pip install diffcache[quant]")
    return lambda pipe: quantization.quantize_(pipe.transformer, getattr(quantization, kind)())


def loaded_by_diffusers(folder: Path) -> Callable[[Any], None]:
    quantization = pytest.importorskip("torchao.quantization", reason="pip install diffcache[quant]")

    def feature(pipe: Any) -> None:
        pipe.transformer.save_pretrained(folder)
        config = TorchAoConfig(quantization.Int8WeightOnlyConfig())
        pipe.transformer = FluxTransformer2DModel.from_pretrained(folder, quantization_config=config)

    return feature


def bitsandbytes(bits: int) -> Callable[[Any], None]:
    """As `BitsAndBytesConfig` would, which asks for a GPU."""
    bnb = pytest.importorskip("bitsandbytes")

    def quantised(layer: nn.Linear) -> nn.Module:
        sizes, bias = (layer.in_features, layer.out_features), layer.bias is not None
        if bits == 8:
            new = bnb.nn.Linear8bitLt(*sizes, bias=bias, has_fp16_weights=False)
            new.weight = bnb.nn.Int8Params(layer.weight, requires_grad=False, has_fp16_weights=False)
        else:
            new = bnb.nn.Linear4bit(*sizes, bias=bias, compute_dtype=torch.float32, quant_type="nf4")
            new.weight = bnb.nn.Params4bit(layer.weight, requires_grad=False, quant_type="nf4")
        new.bias = layer.bias
        return new.to("cpu")

    def feature(pipe: Any) -> None:
        for parent, name, layer in linears(pipe):
            setattr(parent, name, quantised(layer))

    return feature


def gguf(pipe: Any) -> None:
    """Every layer whose rows are whole blocks of 32, as a GGUF file has them."""
    library = pytest.importorskip("gguf")
    from diffusers.quantizers.gguf.utils import GGUFLinear, GGUFParameter

    kind = library.GGMLQuantizationType.Q8_0
    for parent, name, layer in linears(pipe):
        if layer.in_features % 32 == 0:
            packed = torch.from_numpy(library.quants.quantize(layer.weight.numpy(), kind))
            new = GGUFLinear(layer.in_features, layer.out_features, layer.bias is not None, torch.float32)
            new.weight, new.bias = GGUFParameter(packed, quant_type=kind), layer.bias
            setattr(parent, name, new)


KINDS: dict[str, Callable[[Path], Callable[[Any], None]]] = {
    "torchao int8 weight-only": lambda folder: torchao("Int8WeightOnlyConfig"),
    "torchao int8 dynamic": lambda folder: torchao("Int8DynamicActivationInt8WeightConfig"),
    "torchao float8 weight-only": lambda folder: torchao("Float8WeightOnlyConfig"),
    "torchao, loaded by Diffusers (`TorchAoConfig`)": loaded_by_diffusers,
    "bitsandbytes int8 (on a CPU)": lambda folder: bitsandbytes(8),
    "bitsandbytes nf4 (on a CPU)": lambda folder: bitsandbytes(4),
    "GGUF Q8_0": lambda folder: gguf,
}


SLOW = {"torchao int8 dynamic", "torchao float8 weight-only", "bitsandbytes int8 (on a CPU)"}


@each_level
@pytest.mark.parametrize("kind", [slow(kind) if kind in SLOW else kind for kind in KINDS])
def test_a_cache_works_on_quantised_weights(kind: str, level: str, tmp_path: Path, cell: Cell) -> None:
    feature = KINDS[kind](tmp_path)
    quantised = CASES[NAME].build()
    feature(quantised)
    assert not torch.equal(render(quantised, NAME), reference(NAME))
    assert verdict(NAME, feature, level) == "works"
    cell(GROUP, kind, level)
