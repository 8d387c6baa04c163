"""ScaleKV (arXiv 2505.19602, NeurIPS 2025): keys and values of next-scale models, by layer and scale. A chunk is a scale.

Layers that look at the whole past (drafters) keep many tokens; layers that look at the current map (refiners) keep few, and fewer at
finer scales. Each head keeps the tokens that a few queries of the newest map attend to. The authors' code adds up products of queries
and keys without a softmax, and always keeps the tokens of these queries, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from diffcache.rollouts.book import Book
from diffcache.rollouts.policies import Chunk, RolloutPolicy, attention_mass
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.numbers_given import is_count


@dataclass(frozen=True)
class ScaleKV(RolloutPolicy):
    """A budget for each layer and scale, the same number of tokens in all of them together at every scale.

    Attributes:
        budget: tokens that a layer keeps, mean over the layers.
        drafters: indices of the layers that keep more; none for the same budget everywhere.
        refiner_share: of the budget that a refiner keeps at the first scale; B_r(0) in the paper.
        decay: so much of the budget less at each finer scale; delta in the paper.
        observations: queries that judge the past, one for each patch of the newest map; a square number.
        pool: relevance is max-pooled over so many neighbours, an odd number.
    """

    name: ClassVar[str] = "scale-kv"

    budget: int = 64
    drafters: tuple[int, ...] = ()
    refiner_share: float = 0.6
    decay: float = 0.05
    observations: int = 16
    pool: int = 5

    def __post_init__(self) -> None:
        whole = all(map(is_count, (self.budget, self.pool, self.observations)))
        if not whole or self.pool % 2 == 0 or math.isqrt(self.observations) ** 2 != self.observations:
            raise ConfigError(
                f"budget={self.budget!r} has to be a whole number, 1 or more, pool={self.pool!r} an odd one, "
                f"observations={self.observations!r} a square number."
            )
        if not isinstance(self.drafters, (tuple, list)):
            raise ConfigError(f"drafters={self.drafters!r}: give layers as a tuple, (0, 3).")
        if len(set(self.drafters)) < len(self.drafters):
            raise ConfigError(f"drafters={tuple(self.drafters)}: name each layer once.")
        if not (0 < self.refiner_share <= 1 and self.decay >= 0):
            raise ConfigError(
                f"refiner_share={self.refiner_share} has to be in (0, 1], and decay={self.decay} not negative."
            )

    def check(self, chunk: Chunk) -> None:
        missing = [layer for layer in self.drafters if layer not in range(chunk.layers)]
        if missing:
            raise ConfigError(
                f"drafters={tuple(self.drafters)}: there is no layer {missing[0]!r}, they are 0 to {chunk.layers - 1}."
            )

    def tokens(self, layer: int, layers: int, scale: int) -> int:
        """The budget of a layer after a scale: N_d B_d + N_r B_r(scale) = layers * budget."""
        drafting = len(self.drafters)
        if drafting in (0, layers):
            return self.budget
        share = max(self.refiner_share - self.decay * scale, 0.0)
        refiner = max(1, round(self.budget * share))
        if layer not in self.drafters:
            return refiner
        return (layers * self.budget - (layers - drafting) * refiner) // drafting

    def is_judging(self, book: Book, chunk: Chunk) -> bool:
        return book.tokens > self.tokens(chunk.layer, chunk.layers, chunk.frame)

    def kept(self, book: Book, chunk: Chunk, relevance: Tensor | None) -> Tensor | None:
        if relevance is None:
            return None
        pooled = functional.max_pool1d(relevance.flatten(0, 1)[:, None], self.pool, 1, self.pool // 2)
        count = self.tokens(chunk.layer, chunk.layers, chunk.frame)
        chosen = pooled.view(relevance.shape).topk(min(count, book.tokens), -1).indices.sort(-1)
        return chosen.values

    def observed(self, query: Tensor, chunk: Chunk) -> Tensor | None:
        """The middle token of each patch of a square map; all tokens of a map with fewer."""
        count = query.shape[2]
        side, patches = round(count**0.5), round(self.observations**0.5)
        if count <= self.observations or side * side != count:
            return query
        middle = ((torch.arange(patches) + 0.5) * side / patches).long()
        return query[:, :, (middle[:, None] * side + middle).flatten().to(query.device)]

    def frames_of_queries(self) -> int:
        return 1

    def relevance(self, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        """The attention that each head pays to each token, fp32 [B, H, T]."""
        return attention_mass(queries, keys, scale)


def selectivity(query: Tensor, key: Tensor, scale: float, top: int) -> float:
    """A layer's attention selectivity index at a scale: attention on the current map times that of the most seen past tokens.

    Args:
        query: of the current map, [B, H, n, D].
        key: of the past and then of the current map, [B, H, T, D].
        scale: of the products.
        top: so many past tokens count.
    """
    attention = (query.float() * scale @ key.float().mT).softmax(-1)
    own = query.shape[2]
    past = attention[..., :-own]
    if past.shape[-1] == 0:
        return 0.0
    most = past.mean(2).topk(min(top, past.shape[-1]), -1).values.sum(-1)
    return float(attention[..., -own:].sum(-1).mean() * most.mean())


def relative_selectivity(indices: Sequence[Sequence[float]]) -> list[float]:
    """How selective each layer is beside the others, from indices by scale and layer: z-scores within a scale, their mean over scales."""
    table = torch.tensor(indices)
    spread = table.std(1, keepdim=True).clamp_min(1e-12)
    scores: list[float] = ((table - table.mean(1, keepdim=True)) / spread).mean(0).tolist()
    return scores


def drafters_of(scores: Sequence[float], count: int) -> tuple[int, ...]:
    """The layers that are least selective: they look at the past, and at all of it."""
    return tuple(sorted(torch.tensor(scores).argsort()[:count].tolist()))


def mean_by_scale(found: Mapping[tuple[int, int], Sequence[float]]) -> list[list[float]]:
    """A table by scale and layer, of what was found in several samples. A scale without a past is left out."""
    scales = sorted({scale for scale, _ in found})
    layers = sorted({layer for _, layer in found})
    table = [[sum(found[k, i]) / len(found[k, i]) for i in layers] for k in scales]
    return [row for row in table if any(row)]
