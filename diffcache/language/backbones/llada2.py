"""LLaDA2 (arXiv 2512.15745), as its repositories on the hub define it: joint projection, partial rotation, experts."""

from typing import Any

import torch
from torch import Tensor

from diffcache.language.backbones.base import by_head, pairs
from diffcache.language.backbones.llama import LlamaLike


class LLaDA2(LlamaLike):
    """The published `LLaDA2MoeModelLM`: attention in blocks, of 32 tokens where its sampler is not told otherwise."""

    attention = "attention"

    def __init__(self, model: Any) -> None:
        super().__init__(model, block=32)

    def call(self, tokens: Tensor, real: Tensor | None, block: int | None) -> Tensor:
        """Its own forward is causal unless it gets a mask of pairs to add."""
        seen = pairs(tokens, real, block)
        size = tokens.shape[1]
        seen = tokens.new_ones((1, 1, size, size), dtype=torch.bool) if seen is None else seen
        seen = seen.expand(-1, -1, size, -1)
        lowest = torch.finfo(self.dtype).min
        added = torch.zeros_like(seen, dtype=self.dtype).masked_fill(~seen, lowest)
        logits: Tensor = self.model(tokens, attention_mask=added).logits
        return logits

    def embed(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.model.model.word_embeddings(tokens)
        return hidden

    def project(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attention = self.layers[layer].attention
        joint = self._joint(layer, hidden)
        queries, keys, values = torch.split(joint, [self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.model.config.use_qk_norm:
            queries, keys = attention.query_layernorm(queries), attention.key_layernorm(keys)
        return queries, keys, values

    def values(self, layer: int, hidden: Tensor) -> Tensor:
        return self._joint(layer, hidden)[:, -self.kv_heads :]

    def finish(self, layer: int, hidden: Tensor, attended: Tensor) -> Tensor:
        part = self.layers[layer]
        hidden = hidden + part.attention.dense(attended)
        out = part.mlp(part.post_attention_layernorm(hidden))
        change: Tensor = out[0] if isinstance(out, tuple) else out  # experts come with their routing
        return hidden + change

    def _joint(self, layer: int, hidden: Tensor) -> Tensor:
        """Queries, keys and values, [b, H + 2 K, n, D]."""
        part = self.layers[layer]
        return by_head(part.attention.query_key_value(part.input_layernorm(hidden)), self.head_dim)
