"""Backbone: how a family of language models is called part by part, so that some rows can be computed alone.

Models are not edited: a backbone names a model's own sub-modules. Before anything is attached, what it computes is compared
with the model's own forward (`families.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

P = ParamSpec("P")
R = TypeVar("R")

Rotary = tuple[Tensor, Tensor]
"""Cosine and sine, [1 or b, n, D or less] each."""


class Backbone(ABC):
    """A model's parts. Sizes: b texts, n rows, S positions, H query heads, K key/value heads, D numbers per head.

    Attributes:
        model: the model itself.
        layers: its layers in order.
        heads, kv_heads, head_dim, width, vocabulary: H, K, D, hidden size, number of logits.
        token_shift: 1 where row i predicts token i + 1 (Dream), 0 where it predicts token i.
    """

    token_shift = 0
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocabulary: int

    def __init__(self, model: Any, layers: nn.ModuleList) -> None:
        self.model = model
        self.layers: list[Any] = list(layers)

    @property
    def scale(self) -> float:
        """The factor of the products of queries and keys."""
        return float(self.head_dim**-0.5)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [b, n] as hidden states [b, n, width]."""

    @abstractmethod
    def rotary(self, length: int, device: torch.device) -> Rotary:
        """Cosine and sine of positions 0 .. length - 1, [1, length, D or less] each, in the precision of rotation."""

    @abstractmethod
    def project(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [b, H, n, D], keys and values [b, K, n, D] of hidden states, before rotation."""

    @abstractmethod
    def rotate(self, queries: Tensor, keys: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Queries and keys rotated by the model's own function."""

    @abstractmethod
    def values(self, layer: int, hidden: Tensor) -> Tensor:
        """The values alone, [b, K, n, D]."""

    @abstractmethod
    def finish(self, layer: int, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer's output [b, n, width] from its input and its attention's output [b, n, H * D]."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [b, n, vocabulary] of the last layer's output."""

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attention of queries [b, H, n, D] over keys and values [b, K, S, D]; [b, n, H * D]."""
        grouped = self.heads != self.kv_heads
        out = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, enable_gqa=grouped
        )
        return out.transpose(1, 2).flatten(2)

    def call(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        """The model's own forward: logits [b, S, vocabulary]. `real` [b, S] is False at padding."""
        mask = None if real is None else real.long()
        logits: Tensor = self.model(tokens, attention_mask=mask).logits
        return logits


def outside_inference_mode(function: Callable[P, R]) -> Callable[P, R]:
    """Without gradients, but not in inference mode. Whoever keeps a tensor made here may train with it later, such as a
    model that remembers its rotary tables."""
    return torch.inference_mode(False)(torch.no_grad()(function))


def by_head(projected: Tensor, head_dim: int) -> Tensor:
    """Projected rows [b, n, heads * D] as [b, heads, n, D]."""
    batch, rows, _ = projected.shape
    return projected.view(batch, rows, -1, head_dim).transpose(1, 2)
