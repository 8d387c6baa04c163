"""Net: a language model as samplers and caches ask it. Backbone: one that is called part by part, so that layers can be watched.

Models are not edited. What a net computes is compared with the model's own forward before anything is attached
(`verification.py`).
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


class Net(ABC):
    """A language model. Sizes: b texts, n rows, S positions, H query heads, K key/value heads, D numbers per head.

    Attributes:
        model: the model itself.
        layers: its layers in order.
        heads, kv_heads, head_dim, width, vocabulary: H, K, D, hidden size, number of logits.
        token_shift: 1 where row i predicts token i + 1 (Dream), 0 where it predicts token i.
        block_attention: tokens of a block, where tokens see their block and what is before it, counted from position 0;
            None where they see everything.
    """

    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocabulary: int

    def __init__(
        self, model: Any, layers: nn.ModuleList, token_shift: int = 0, block: int | None = None
    ) -> None:
        self.model = model
        self.layers: list[Any] = list(layers)
        said_shift = getattr(model.config, "token_shift", None)
        self.token_shift = token_shift if said_shift is None else int(said_shift)
        said_block = getattr(model.config, "block_attention", None)
        self.block_attention = block if said_block is None else int(said_block)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    @abstractmethod
    def call(self, tokens: Tensor, real: Tensor | None, block: int | None) -> Tensor:
        """The model's own forward, without any cache: logits [b, S, vocabulary].

        Args:
            real: bool [b, S], False at padding, which is not attended; None for no padding.
            block: tokens of a block that sees nothing behind itself; None for full attention.
        """

    @abstractmethod
    def parts(self) -> "Backbone":
        """The net part by part.

        Raises:
            TargetError: its parts are not known.
        """


class Backbone(Net):
    """A model's parts, under the names that its family has for them."""

    def parts(self) -> "Backbone":
        return self

    @property
    def scale(self) -> float:
        """The factor of the products of queries and keys."""
        return float(self.head_dim**-0.5)

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

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of queries [b, H, n, D] over keys and values [b, K, S, D]; [b, n, H * D]."""
        grouped = self.heads != self.kv_heads
        out = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, enable_gqa=grouped
        )
        return out.transpose(1, 2).flatten(2)

    def call_parts(self, tokens: Tensor, seen: Tensor | None) -> Tensor:
        """`call` through the parts, for models whose own forward takes no such mask: `seen` [b, 1, S, S], see `pairs`."""
        hidden, rotary = self.embed(tokens), self.rotary(tokens.shape[1], tokens.device)
        for layer in range(len(self.layers)):
            queries, keys, values = self.project(layer, hidden)
            queries, keys = self.rotate(queries, keys, rotary)
            hidden = self.finish(layer, hidden, self.attend(queries, keys, values, seen))
        return self.logits(hidden)

    def call_unmasked(self, tokens: Tensor, real: Tensor | None, block: int | None) -> Tensor:
        """`call` of models whose own forward attends everything, whatever mask it is given: theirs where nothing is masked."""
        seen = pairs(tokens, real, block)
        if seen is not None:
            return self.call_parts(tokens, seen)
        logits: Tensor = self.model(tokens).logits
        return logits


def pairs(tokens: Tensor, real: Tensor | None, block: int | None) -> Tensor | None:
    """Which position sees which, bool [1 or b, 1, 1 or S, S], for texts `tokens` [b, S]; None where each sees all.

    Args:
        real, block: as in `Net.call`.
    """
    seen = None if real is None else real[:, None, None, :]
    if block is not None:
        order = torch.arange(tokens.shape[1], device=tokens.device) // block
        behind_none = (order[:, None] >= order)[None, None]
        seen = behind_none if seen is None else sees_something(seen & behind_none)
    return seen


def sees_something(seen: Tensor) -> Tensor:
    """`seen` [..., S], where rows that see nothing see everything: padding, whose NaN would spread."""
    return seen | ~seen.any(dim=-1, keepdim=True)


def outside_inference_mode(function: Callable[P, R]) -> Callable[P, R]:
    """Without gradients, but not in inference mode. Whoever keeps a tensor made here may train with it later, such as a
    model that remembers its rotary tables."""
    return torch.inference_mode(False)(torch.no_grad()(function))


def by_head(projected: Tensor, head_dim: int) -> Tensor:
    """Projected rows [b, n, heads * D] as [b, heads, n, D]."""
    batch, rows, _ = projected.shape
    return projected.view(batch, rows, -1, head_dim).transpose(1, 2)
