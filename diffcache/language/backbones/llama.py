"""Llama and its like in Transformers, and Dream, which has the same names."""

import sys
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from diffcache.language.backbones.base import Backbone, Rotary, by_head


class LlamaLike(Backbone):
    """Transformers' Llama, Qwen, Mistral and their like, with `is_causal=False` in the configuration."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, model.model.layers)
        config = model.config
        attention = self.layers[0].self_attn
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = attention.head_dim
        self.width, self.vocabulary = config.hidden_size, model.lm_head.out_features
        self._source: Any = sys.modules[type(attention).__module__]
        self._norms_heads = hasattr(attention, "q_norm")

    @cached_property
    def _attention(self) -> Callable[..., tuple[Tensor, Any]]:
        """The attention function that the model's configuration asks for. Looked up once for each run, because that is slow."""
        kind = self.model.config._attn_implementation
        function: Callable[..., tuple[Tensor, Any]] = ALL_ATTENTION_FUNCTIONS.get_interface(
            kind, self._source.eager_attention_forward
        )
        return function

    def embed(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.model.model.embed_tokens(tokens)
        return hidden

    def rotary(self, length: int, device: torch.device) -> Rotary:
        like = torch.empty(0, dtype=self.dtype, device=device)
        cos, sin = self.model.model.rotary_emb(like, torch.arange(length, device=device)[None])
        return cos, sin

    def project(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attention = self.layers[layer].self_attn
        normed = self.layers[layer].input_layernorm(hidden)
        queries, keys, values = (
            by_head(projection(normed), self.head_dim)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if self._norms_heads:
            queries, keys = attention.q_norm(queries), attention.k_norm(keys)
        return queries, keys, values

    def rotate(self, queries: Tensor, keys: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        queries, keys = self._source.apply_rotary_pos_emb(queries, keys, *rotary)
        return queries, keys

    def values(self, layer: int, hidden: Tensor) -> Tensor:
        part = self.layers[layer]
        return by_head(part.self_attn.v_proj(part.input_layernorm(hidden)), self.head_dim)

    def finish(self, layer: int, hidden: Tensor, attended: Tensor) -> Tensor:
        part = self.layers[layer]
        hidden = hidden + part.self_attn.o_proj(attended)
        out: Tensor = hidden + part.mlp(part.post_attention_layernorm(hidden))
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.lm_head(self.model.model.norm(hidden))
        return logits

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Through Transformers' attention interface, as the model's configuration asks."""
        attention = self.layers[layer].self_attn
        if mask is not None and self._attention is self._source.eager_attention_forward:
            mask = torch.zeros_like(mask, dtype=queries.dtype).masked_fill(
                ~mask, torch.finfo(queries.dtype).min
            )
        out, _ = self._attention(
            attention, queries, keys, values, mask, scaling=attention.scaling, is_causal=False
        )
        return out.flatten(2)


class Dream(LlamaLike):
    """Dream's published module: Qwen2's names, an attention of its own, and logits for the next token."""

    token_shift = 1

    attend = Backbone.attend

    def call(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        """Its forward takes a mask of pairs [b, 1, S, S], and the word "full" for none."""
        mask: Any = "full" if real is None else (real[:, None, :, None] & real[:, None, None, :])
        logits: Tensor = self.model(tokens, attention_mask=mask).logits
        return logits
