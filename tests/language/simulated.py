"""A Llama of one text, written down plainly and apart from diffcache, that keeps keys and values that are stale; in float64."""

from __future__ import annotations

import math
from typing import Any

import torch
from language import references
from language.tiny import MASK, tiny_llama
from torch import Tensor, nn

GEN = 16


class Stale:
    """A Llama of one text that computes some positions; all others keep the keys and values that they had."""

    def __init__(self, model: Any, length: int) -> None:
        self.model, config = model, model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = config.hidden_size // self.heads
        angles = torch.arange(length, dtype=torch.float64)[:, None] / 10_000 ** (
            torch.arange(0, self.size, 2, dtype=torch.float64) / self.size
        )
        self.cos, self.sin = (torch.cat([t, t], dim=-1) for t in (angles.cos(), angles.sin()))
        layers = config.num_hidden_layers
        self.keys = torch.zeros(layers, length, self.kv_heads, self.size, dtype=torch.float64)
        self.values = torch.zeros_like(self.keys)

    def _norm(self, part: Any, x: Tensor) -> Tensor:
        return part.weight * x / (x.square().mean(-1, keepdim=True) + part.variance_epsilon).sqrt()

    def _turn(self, x: Tensor, rows: list[int]) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return x * self.cos[rows][:, None] + torch.cat([-right, left], dim=-1) * self.sin[rows][:, None]

    def __call__(self, tokens: Tensor, rows: list[int]) -> dict[int, Tensor]:
        """Logits of these positions of `tokens` [S]."""
        x = self.model.model.embed_tokens.weight[tokens[rows]]
        for i, layer in enumerate(self.model.model.layers):
            part, normed = layer.self_attn, self._norm(layer.input_layernorm, x)
            q = self._turn((normed @ part.q_proj.weight.T).view(len(rows), self.heads, -1), rows)
            self.keys[i, rows] = self._turn(
                (normed @ part.k_proj.weight.T).view(len(rows), self.kv_heads, -1), rows
            )
            self.values[i, rows] = (normed @ part.v_proj.weight.T).view(len(rows), self.kv_heads, -1)
            k, v = (
                t.repeat_interleave(self.heads // self.kv_heads, dim=1)
                for t in (self.keys[i], self.values[i])
            )
            weight = (torch.einsum("nhd,shd->nhs", q, k) / math.sqrt(self.size)).softmax(-1)
            x = x + torch.einsum("nhs,shd->nhd", weight, v).flatten(1) @ part.o_proj.weight.T
            normed, mlp = self._norm(layer.post_attention_layernorm, x), layer.mlp
            gate = nn.functional.silu(normed @ mlp.gate_proj.weight.T) * (normed @ mlp.up_proj.weight.T)
            x = x + gate @ mlp.down_proj.weight.T
        out = self._norm(self.model.model.norm, x) @ self.model.lm_head.weight.T
        return dict(zip(rows, references.without_mask(out), strict=True))


def model_of(scale: float) -> Any:
    model = tiny_llama(3).double()
    with torch.no_grad():
        model.lm_head.weight *= scale
    return model


def masks(x: Tensor) -> list[int]:
    return (x == MASK).nonzero()[:, 0].tolist()
