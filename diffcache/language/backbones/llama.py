"""Models with Llama's names for their parts: Transformers' own, Dream, LLaDA-MoE, SDAR and Fast-dLLM v2."""

import sys
from typing import Any

import torch
from torch import Tensor

from diffcache.language.backbones.base import Backbone, Rotary, by_head, pairs


class LlamaLike(Backbone):
    """Llama's names. Norms of heads, and an expert beside the routed ones, where there are any.

    Attributes:
        attention: what a layer calls its attention.
    """

    attention = "self_attn"

    def __init__(self, model: Any, token_shift: int = 0, block: int | None = None) -> None:
        super().__init__(model, model.model.layers, token_shift, block)
        config = model.config
        attention = getattr(self.layers[0], self.attention)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = attention.head_dim
        self.width, self.vocabulary = config.hidden_size, model.lm_head.out_features
        self._source: Any = sys.modules[type(attention).__module__]
        self._norms_heads = hasattr(attention, "q_norm")

    def call(self, tokens: Tensor, real: Tensor | None, block: int | None) -> Tensor:
        return self.call_parts(tokens, pairs(tokens, real, block))

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
        normed = part.post_attention_layernorm(hidden)
        out: Tensor = part.mlp(normed)
        if hasattr(part, "shared_expert"):
            out = out + part.shared_expert(normed)
        return hidden + out

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.lm_head(self.model.model.norm(hidden))
        return logits


class LLaDAMoE(LlamaLike):
    """LLaDA-MoE: OLMoE's names. Its own forward takes no mask."""

    def call(self, tokens: Tensor, real: Tensor | None, block: int | None) -> Tensor:
        return self.call_unmasked(tokens, real, block)


class Dream(LlamaLike):
    """Dream and DiffuCoder: Qwen2's names, logits for the next token."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, token_shift=1)

    def call(self, tokens: Tensor, real: Tensor | None, block: int | None) -> Tensor:
        """Its forward takes a mask of pairs [b, 1, S, S], and the word "full" for none."""
        seen = pairs(tokens, real, block)
        size = tokens.shape[1]
        mask: Any = "full" if seen is None else seen.expand(-1, -1, size, -1)
        logits: Tensor = self.model(tokens, attention_mask=mask).logits
        return logits


class SDAR(LlamaLike):
    """SDAR: Qwen3's names, attention in blocks. Its caller passes the mask of pairs [b, 1, S, S]."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, block=model.config.block_size)

    def call(self, tokens: Tensor, real: Tensor | None, block: int | None) -> Tensor:
        size = tokens.shape[1]
        seen = pairs(tokens, real, block)
        seen = tokens.new_ones((1, 1, 1, size), dtype=torch.bool) if seen is None else seen
        logits: Tensor = self.model(tokens, attention_mask=seen.expand(-1, -1, size, -1)).logits
        return logits


class FastDLLM(LlamaLike):
    """Fast-dLLM v2: Qwen2's names, attention in blocks, logits for the next token. Its own forward attends padding."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, token_shift=1, block=model.config.bd_size)

    def call(self, tokens: Tensor, real: Tensor | None, block: int | None) -> Tensor:
        if real is not None:
            return self.call_parts(tokens, pairs(tokens, real, block))
        logits: Tensor = self.model(tokens, block_size=block or tokens.shape[1]).logits
        return logits
