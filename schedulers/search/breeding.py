"""Breeding of tables: how NSGA-II makes new candidates from old ones.

The genome is a table [T, S] (ticks, sites), flattened row by row, so that a crossover exchanges stretches of time. All
random numbers come from the generator that the caller passes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.pareto import fitness

ATTEMPTS = 20
"""Matings for each child that is wanted, before breeding gives up finding new tables."""


@dataclass(frozen=True)
class Breeding:
    """How children are made.

    Attributes:
        crossover: probability that two parents exchange genes. Published (ECAD): 0.9.
        points: cut points of the crossover. Published: 4.
        mutation: probability that a gene flips, for each gene of each child. None: one gene of a child on average. ECAD's
            "0.05" is another quantity: the share of children that mutate at all.

    Raises:
        ConfigError: a value is out of range.
    """

    crossover: float = 0.9
    points: int = 4
    mutation: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.crossover <= 1:
            raise ConfigError(f"crossover: {self.crossover} is not between 0 and 1.")
        if not 0 <= (self.mutation or 0) <= 1:
            raise ConfigError(f"mutation: {self.mutation} is not between 0 and 1.")
        if self.points < 1:
            raise ConfigError(f"points: {self.points} is not a positive number of cuts.")

    def children(
        self, parents: Tensor, scores: Tensor, count: int, seen: set[bytes], rng: torch.Generator
    ) -> Tensor:
        """Bool [<= count, T, S]: tables that are not in `seen`; fewer than `count` where too few new ones are found.

        Args:
            parents: bool [n, T, S].
            scores: [n, objectives].
            count: how many tables to make.
            seen: the `key` of every table that is known already.
            rng: generator of all random numbers.
        """
        rank = torch.empty(len(parents), dtype=torch.int64)
        rank[fitness(scores)] = torch.arange(len(parents))
        found: dict[bytes, Tensor] = {}
        for _ in range(ATTEMPTS * count):
            if len(found) >= count:
                break
            for child in self._mate(parents[_tournament(rank, rng)], parents[_tournament(rank, rng)], rng):
                if key(child) not in seen:
                    found.setdefault(key(child), child)
        return torch.stack(list(found.values())[:count]) if found else parents[:0]

    def _mate(self, first: Tensor, second: Tensor, rng: torch.Generator) -> list[Tensor]:
        children = torch.stack([first, second]).flatten(1)
        if torch.rand((), generator=rng) < self.crossover:
            children = torch.where(self._exchanged(children.shape[1], rng), children.flip(0), children)
        rate = 1 / children.shape[1] if self.mutation is None else self.mutation
        children = children ^ (torch.rand(children.shape, generator=rng) < rate)
        children = children.view(2, *first.shape)
        children[:, 0] = True
        return list(children)

    def _exchanged(self, genes: int, rng: torch.Generator) -> Tensor:
        """Bool [genes]: True in every second stretch between the cut points."""
        cuts = torch.randperm(genes - 1, generator=rng)[: self.points] + 1
        crossed = torch.zeros(genes, dtype=torch.int64)
        crossed[cuts] = 1
        return crossed.cumsum(0) % 2 == 1


def key(table: Tensor) -> bytes:
    """The contents of a table, for looking it up in a set."""
    return table.numpy().tobytes()


def _tournament(rank: Tensor, rng: torch.Generator) -> int:
    """Draws two parents and returns the fitter one; `rank` is the position of each parent in the order of fitness."""
    drawn = torch.randint(len(rank), (2,), generator=rng)
    return int(drawn[rank[drawn].argmin()])
