"""LLaDA (arXiv 2502.09992), LLaDA-1.5 and MMaDA's text model, as their repositories on the hub define them."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from diffcache.language.backbones.base import Backbone, Rotary, by_head


class LLaDA(Backbone):
    """The published module of LLaDA and LLaDA-1.5: OLMo's names, rotation in float32, no attention mask."""

    def __init__(self, model: Any) -> None:
        self._core: Any = model.model
        super().__init__(model, self._core.transformer.blocks)
        config = self._core.config
        self.heads = config.n_heads
        self.kv_heads = config.effective_n_kv_heads
        self.width = config.d_model
        self.head_dim = config.d_model // config.n_heads
        self.vocabulary = self._head.weight.shape[0]

    def call(self, tokens: Tensor, real: Tensor | None, block: int | None) -> Tensor:
        return self.call_unmasked(tokens, real, block)

    @property
    def _head(self) -> Any:
        parts = self._core.transformer
        return parts.ff_out if "ff_out" in parts else parts.wte

    def embed(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self._core.transformer.wte(tokens)
        return hidden * self.width**0.5 if self._core.config.input_emb_norm else hidden

    def rotary(self, length: int, device: torch.device) -> Rotary:
        sin, cos = self.layers[0].rotary_emb.get_rotary_embedding(length, device)
        exact = torch.float32 if self._core.config.rope_full_precision else self.dtype
        return cos[0].to(exact), sin[0].to(exact)

    def project(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        part = self.layers[layer]
        normed = part.attn_norm(hidden)
        queries, keys, values = part.q_proj(normed), part.k_proj(normed), part.v_proj(normed)
        if part.q_norm is not None:
            queries, keys = part.q_norm(queries).to(keys.dtype), part.k_norm(keys).to(keys.dtype)
        queries, keys, values = (by_head(t, self.head_dim) for t in (queries, keys, values))
        return queries, keys, values

    def rotate(self, queries: Tensor, keys: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        cos, sin = (table[:, None] for table in rotary)
        turn = self.layers[0].rotary_emb.apply_rotary_pos_emb
        queries, keys = (turn(sin, cos, t.to(cos.dtype)).to(t.dtype) for t in (queries, keys))
        return queries, keys

    def values(self, layer: int, hidden: Tensor) -> Tensor:
        part = self.layers[layer]
        return by_head(part.v_proj(part.attn_norm(hidden)), self.head_dim)

    def finish(self, layer: int, hidden: Tensor, attended: Tensor) -> Tensor:
        part = self.layers[layer]
        hidden = hidden + part.attn_out(attended)
        normed = part.ff_norm(hidden)
        out: Tensor = hidden + part.ff_out(part.act(part.ff_proj(normed)) * part.up_proj(normed))
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        normed = self._core.transformer.ln_f(hidden)
        logits = functional.linear(normed, self._head.weight, getattr(self._head, "bias", None))
        return logits * self.width**-0.5 if self._core.config.scale_logits else logits
