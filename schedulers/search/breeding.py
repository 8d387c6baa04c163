"""Breeding of tables: what NSGA-II does to make new candidates of old ones.

A genome is a table [T, S] (ticks, sites), flattened row by row, so that a crossover exchanges stretches of time. All
randomness comes from the generator that is handed in.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.pareto import fitness

ATTEMPTS = 20


@dataclass(frozen=True)
class Breeding:
    """How children are made.

    Attributes:
        crossover: probability that a mating exchanges genes; published (ECAD): 0.9.
        points: cut points of the crossover; published: 4.
        mutation: probability that a gene flips, for each gene of each child; None: one gene of a child on average.
            (ECAD's "0.05" is the share of children that mutate at all, in a library that flips 1 / genes of them.)

    Raises:
        ConfigError: a value out of range.
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
        """Bool [<= count, T, S]: new tables, none of them in `seen`; fewer where the search space is used up.

        Args:
            parents: bool [n, T, S].
            scores: [n, objectives].
            count: how many are wanted.
            seen: `key` of every table that need not come again.
            rng: source of all randomness.
        """
        place = torch.empty(len(parents), dtype=torch.int64)
        place[fitness(scores)] = torch.arange(len(parents))
        found: dict[bytes, Tensor] = {}
        for _ in range(ATTEMPTS * count):
            if len(found) >= count:
                break
            for child in self._mate(parents[_tournament(place, rng)], parents[_tournament(place, rng)], rng):
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
        """Bool [genes]: every second stretch between the cut points."""
        cuts = torch.randperm(genes - 1, generator=rng)[: self.points] + 1
        crossed = torch.zeros(genes, dtype=torch.int64)
        crossed[cuts] = 1
        return crossed.cumsum(0) % 2 == 1


def key(table: Tensor) -> bytes:
    """What tells two tables apart."""
    return table.numpy().tobytes()


def _tournament(place: Tensor, rng: torch.Generator) -> int:
    """The better of two that are drawn; `place` is each one's place in the order of fitness."""
    drawn = torch.randint(len(place), (2,), generator=rng)
    return int(drawn[place[drawn].argmin()])
