"""Screening: many tables are bred and judged by a model, and only the few that promise most are evaluated."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diffcache.schedulers.search.breeding import key
from diffcache.schedulers.search.evolution import Evolution
from diffcache.schedulers.search.pareto import fitness, front, hypervolume


class Model(Protocol):
    """Foretells scores [n, 2] of tables, bool [n, T, S]."""

    def fit(self, tables: Tensor, scores: Tensor) -> None: ...

    def predict(self, tables: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Screening:
    """Evolves the parents by the model's word, then proposes what adds most to the front that was really evaluated.

    Attributes:
        model: fitted anew to everything evaluated so far, each time.
        generations: of the evolution by the model. With more of them it goes where the model errs to its favour.
        population: of the same.
    """

    model: Model
    generations: int = 2
    population: int = 48

    def propose(self, search: Evolution, rng: torch.Generator) -> Tensor:
        """Bool [<= search.children, T, S] of tables that the search has not evaluated."""
        self.model.fit(search.tables, search.scores)
        pool = search.parents
        scores = self.model.predict(pool)
        for _ in range(self.generations):
            children = search.breeding.children(pool, scores, self.population, {key(t) for t in pool}, rng)
            pool = torch.cat([pool, children])
            scores = torch.cat([scores, self.model.predict(children)])
            fittest = fitness(scores)[: self.population]
            pool, scores = pool[fittest], scores[fittest]
        fresh = torch.tensor([not search.knows(table) for table in pool])
        return pool[fresh][_best_additions(search.scores, scores[fresh], search.children)]


def _best_additions(known: Tensor, offered: Tensor, count: int) -> list[int]:
    """Indices of the offered scores that, one after the other, add most hypervolume to the known ones."""
    reference = known.max(0).values
    best = known[front(known)]
    left = list(range(len(offered)))
    chosen: list[int] = []
    while left and len(chosen) < count:
        volumes = [hypervolume(torch.cat([best, offered[[i]]]), reference) for i in left]
        chosen.append(left.pop(volumes.index(max(volumes))))
        best = torch.cat([best, offered[[chosen[-1]]]])
    return chosen
