"""Screening: a model scores many new tables, and only the few best of them are evaluated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diffcache.schedulers.search.breeding import key
from diffcache.schedulers.search.evolution import Evolution
from diffcache.schedulers.search.pareto import fitness, front, hypervolume


class Surrogate(Protocol):
    """A model of the scores."""

    def fit(self, tables: Tensor, scores: Tensor) -> Callable[[Tensor], Tensor]:
        """Learns from tables, bool [n, T, S], and their scores [n, 2]; returns what predicts the scores of tables."""


@dataclass(frozen=True)
class Screening:
    """Evolves the parents by predicted scores, then proposes the tables that add most to the evaluated front.

    Attributes:
        surrogate: predicts scores. Each proposal fits it again, to all tables that were evaluated.
        generations: of the evolution by predicted scores. With more it finds tables whose scores are predicted too well.
        population: of that evolution.
    """

    surrogate: Surrogate
    generations: int = 2
    population: int = 48

    def propose(self, search: Evolution, rng: torch.Generator) -> Tensor:
        """Bool [<= search.children, T, S]: tables that the search has not evaluated."""
        predict = self.surrogate.fit(search.tables, search.scores)
        pool = search.parents
        scores = predict(pool)
        for _ in range(self.generations):
            children = search.breeding.children(pool, scores, self.population, {key(t) for t in pool}, rng)
            pool = torch.cat([pool, children])
            scores = torch.cat([scores, predict(children)])
            fittest = fitness(scores)[: self.population]
            pool, scores = pool[fittest], scores[fittest]
        fresh = torch.tensor([not search.knows(table) for table in pool])
        return pool[fresh][_best_additions(search.scores, scores[fresh], search.children)]


def _best_additions(known: Tensor, offered: Tensor, count: int) -> list[int]:
    """Indices of the offered scores that add most hypervolume to the known ones, chosen one after the other."""
    reference = known.max(0).values
    best = known[front(known)]
    left = list(range(len(offered)))
    chosen: list[int] = []
    while left and len(chosen) < count:
        volumes = [hypervolume(torch.cat([best, offered[[i]]]), reference) for i in left]
        chosen.append(left.pop(volumes.index(max(volumes))))
        best = torch.cat([best, offered[[chosen[-1]]]])
    return chosen
