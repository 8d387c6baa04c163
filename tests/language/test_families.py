"""Backbones: of Transformers' own classes, and of minimal modules with the published modules' attribute names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from language.modules import DreamModel, LLaDA2MoeModelLM, LLaDAModelLM, LLaDARotation, sharpened
from language.tiny import EOS, MASK, VOCABULARY, texts, tiny_llama
from torch import Tensor, nn
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from diffcache import ConfigError, TargetError, accelerate, generate, report
from diffcache.language.backbones.families import backbone_of, verify
from diffcache.language.backbones.rotation import kernel_tables
from diffcache.language.recipes.dkv import DKVDecodeConfig
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.session import Session

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "is_causal": False,
    "initializer_range": 0.2,
    "mask_token_id": MASK,
    "eos_token_id": EOS,
    "bos_token_id": 3,
    "pad_token_id": 0,
}

MODELS: dict[str, Callable[[], Any]] = {
    "llama": tiny_llama,
    "llama in bfloat16": lambda: tiny_llama().to(torch.bfloat16),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)).eval(),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8)).eval(),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None)).eval(),
    "LLaDA's names": lambda: sharpened(LLaDAModelLM()),
    "LLaDA's names, scaled": lambda: sharpened(
        LLaDAModelLM(input_emb_norm=True, scale_logits=True, rope_full_precision=False)
    ),
    "LLaDA2's names": lambda: sharpened(LLaDA2MoeModelLM()),
    "Dream's names": lambda: sharpened(DreamModel()),
}


@pytest.mark.parametrize("name", MODELS)
def test_none_writes_what_the_plain_model_writes(name: str) -> None:
    torch.manual_seed(0)
    model, prompts = MODELS[name](), texts(2, 7)
    plain = generate(model, prompts, gen_length=16, block_length=8)
    cached = generate(accelerate(model, "none"), prompts, gen_length=16, block_length=8)
    assert torch.equal(plain.sequences, cached.sequences)


@pytest.mark.parametrize(
    "method",
    ["dkv-decode", "dkv-prefill", "fast-dllm-dual", "fast-dllm-prefix", "elastic-cache", "dllm-cache"],
)
@pytest.mark.parametrize("name", ["qwen3", "LLaDA's names", "LLaDA2's names", "Dream's names"])
def test_methods_write_on_every_family(name: str, method: str) -> None:
    torch.manual_seed(0)
    model, prompts = accelerate(MODELS[name](), method), texts(2, 7)
    mask = torch.ones_like(prompts)
    mask[0, :2] = 0
    written = generate(model, prompts, mask, gen_length=16, block_length=8, threshold=0.9)
    assert not (written.sequences == MASK).any()
    assert report(model).compute_fraction < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_kernel_rotates_as_every_family_does(name: str, dtype: torch.dtype) -> None:
    net = backbone_of(MODELS[name]().to(dtype))
    assert kernel_tables(net, net.rotary(9, torch.device("cpu"))) is not None


class Neighbours(LLaDARotation):
    """Rotates channels 2 i and 2 i + 1, as the kernel does not."""

    def apply_rotary_pos_emb(self, sin: Tensor, cos: Tensor, t: Tensor) -> Tensor:
        turned = torch.stack([-t[..., 1::2], t[..., ::2]], dim=-1).flatten(-2)
        return t * cos + turned * sin


def test_a_model_with_a_rotation_of_its_own_keeps_it() -> None:
    model, prompts = sharpened(LLaDAModelLM()), texts(2, 7)
    for block in model.model.transformer["blocks"]:
        block.rotary_emb = Neighbours()
    net = backbone_of(model)
    assert kernel_tables(net, net.rotary(9, torch.device("cpu"))) is None
    plain = generate(model, prompts, gen_length=16, block_length=8)
    cached = generate(accelerate(model, "none"), prompts, gen_length=16, block_length=8)
    assert torch.equal(plain.sequences, cached.sequences)


def test_dream_is_asked_one_row_earlier() -> None:
    """Its row i predicts token i + 1, also across a block's border: there the row before the block is computed too."""
    model, prompts = accelerate(sharpened(DreamModel()), "fast-dllm-dual"), texts(1, 7)
    generate(model, prompts, gen_length=16, block_length=8, eos_early_stop=False)
    per_call = [rows // 3 for rows in report(model).row_layers_of]
    assert per_call == [23, *[9] * 7, 23, *[9] * 7]


@dataclass(frozen=True, kw_only=True)
class MasksConfig(DKVDecodeConfig):
    """A method whose rows are a tensor of the canvas's own."""

    name: ClassVar[str] = "masks"

    def rows(self, canvas: Canvas) -> Tensor:
        return canvas.masked


@torch.no_grad()
def test_dreams_earlier_rows_are_added_beside_the_canvas() -> None:
    canvas = Canvas.of_prompts(texts(1, 7), 8, MASK)
    session = Session(
        backbone_of(sharpened(DreamModel())), MasksConfig(), torch.ones_like(canvas.tokens).bool()
    )
    session.logits(canvas)
    canvas.advance()
    session.logits(canvas)
    assert session.report.row_layers_of[1] == 3 * 9  # eight masks, and the row before the first
    assert canvas.masked.sum() == 8


@pytest.mark.parametrize("method", [None, "fast-dllm-dual"])
def test_dream_needs_a_token_to_begin_with(method: str | None) -> None:
    model = sharpened(DreamModel())
    if method is not None:
        accelerate(model, method)
    with pytest.raises(ConfigError, match="predicts each token from the one before it"):
        generate(model, texts(1, 0), gen_length=8)
    generate(model, texts(1, 1), gen_length=8)


def test_dropout_is_no_part_that_a_backbone_lacks() -> None:
    with pytest.raises(TargetError, match=r"call model\.eval\(\) first"):
        verify(tiny_llama(attention_dropout=0.5).train())


def test_a_causal_model_is_refused() -> None:
    with pytest.raises(TargetError, match="is causal"):
        accelerate(tiny_llama(is_causal=True))


def test_a_model_that_computes_more_than_its_parts_is_refused() -> None:
    model = tiny_llama()
    model.model.layers[1].register_forward_hook(lambda layer, args, out: out * 1.1)
    with pytest.raises(TargetError, match="computes more than its LlamaLike parts"):
        verify(model)


def test_a_model_of_no_known_family_is_refused() -> None:
    class Unknown(nn.Module):
        config = tiny_llama().config

    with pytest.raises(TargetError, match="no language model of a known family"):
        accelerate(Unknown(), "dkv-decode")
