"""Language models with the shape of real ones and random weights: for speed alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a Llama without causal mask, and of its texts.

    Attributes:
        width, inner, layers, heads, vocabulary: of the model; there are as many key/value heads as query heads.
        dtype: of the weights.
        prompt_length, gen_length: tokens that are given, and tokens that are written.
    """

    width: int
    inner: int
    layers: int
    heads: int
    vocabulary: int
    dtype: torch.dtype
    prompt_length: int
    gen_length: int

    def build(self, device: str) -> Any:
        """The model, in evaluation mode. It has no EOS token, so that every text has its full length."""
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=self.width,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            vocab_size=self.vocabulary,
            is_causal=False,
            mask_token_id=1,
            eos_token_id=None,
        )
        torch.manual_seed(0)
        with torch.device(device):
            return LlamaForCausalLM._from_config(config, dtype=self.dtype).eval()

    def prompts(self, count: int) -> Tensor:
        """Random tokens, none of them the mask, int64 [count, prompt_length]."""
        return torch.randint(2, self.vocabulary, (count, self.prompt_length))


SHAPES = {
    "wide": Shape(
        width=384,
        inner=1024,
        layers=4,
        heads=6,
        vocabulary=28,
        dtype=torch.float32,
        prompt_length=41,
        gen_length=256,
    ),
    "medium": Shape(
        width=512,
        inner=1376,
        layers=8,
        heads=8,
        vocabulary=1000,
        dtype=torch.float32,
        prompt_length=256,
        gen_length=256,
    ),
    "tiny": Shape(
        width=32,
        inner=64,
        layers=2,
        heads=2,
        vocabulary=28,
        dtype=torch.float32,
        prompt_length=41,
        gen_length=64,
    ),
    "llada-8b": Shape(
        width=4096,
        inner=12288,
        layers=32,
        heads=32,
        vocabulary=126464,
        dtype=torch.bfloat16,
        prompt_length=900,
        gen_length=128,
    ),
}
"""wide: the testbed's texts, and a model so wide that most of the time goes into its matrices. llada-8b: LLaDA-8B's sizes."""
