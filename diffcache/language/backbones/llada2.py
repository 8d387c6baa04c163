"""LLaDA2 (arXiv 2512.15745), as its repositories on the hub define it: joint projection, partial rotation, experts."""

import sys
from typing import Any

import torch
from torch import Tensor

from diffcache.language.backbones.base import Backbone, Rotary, by_head, pairs


class LLaDA2(Backbone):
    """The published `LLaDA2MoeModelLM`: attention in blocks, of 32 tokens where its sampler is not told otherwise."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, model.model.layers, block=32)
        config = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = self.layers[0].attention.head_dim
        self.width, self.vocabulary = config.hidden_size, model.lm_head.out_features
        self._source: Any = sys.modules[type(self.layers[0].attention).__module__]

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

    def rotary(self, length: int, device: torch.device) -> Rotary:
        like = torch.empty(0, dtype=self.dtype, device=device)
        cos, sin = self.model.model.rotary_emb(like, torch.arange(length, device=device)[None])
        return cos, sin

    def project(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attention = self.layers[layer].attention
        joint = self._joint(layer, hidden)
        queries, keys, values = torch.split(joint, [self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.model.config.use_qk_norm:
            queries, keys = attention.query_layernorm(queries), attention.key_layernorm(keys)
        return queries, keys, values

    def rotate(self, queries: Tensor, keys: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        queries, keys = self._source.apply_rotary_pos_emb(queries, keys, *rotary)
        return queries, keys

    def values(self, layer: int, hidden: Tensor) -> Tensor:
        return self._joint(layer, hidden)[:, -self.kv_heads :]

    def finish(self, layer: int, hidden: Tensor, attended: Tensor) -> Tensor:
        part = self.layers[layer]
        hidden = hidden + part.attention.dense(attended)
        out = part.mlp(part.post_attention_layernorm(hidden))
        change: Tensor = out[0] if isinstance(out, tuple) else out  # experts come with their routing
        return hidden + change

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.lm_head(self.model.model.norm(hidden))
        return logits

    def _joint(self, layer: int, hidden: Tensor) -> Tensor:
        """Queries, keys and values, [b, H + 2 K, n, D]."""
        part = self.layers[layer]
        return by_head(part.attention.query_key_value(part.input_layernorm(hidden)), self.head_dim)
