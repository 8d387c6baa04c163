"""Evolution of tables (ECAD, arXiv 2506.15682): NSGA-II searches the Pareto front of loss and cost.

The loop is our own: the library that ECAD uses needs 280 MB of dependencies, calls another quantity the mutation rate, and
writes its checkpoints by pickle.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.breeding import Breeding, key
from diffcache.schedulers.search.checkpoint import load_checkpoint, save_checkpoint
from diffcache.schedulers.search.pareto import fitness, front

Evaluate = Callable[[Tensor], Tensor]
"""From tables, bool [n, T, S], to scores [n, 2]: loss and cost, both minimised. Processes can share the tables of one call."""

KIND = "search"
"""The kind of its checkpoints."""


class Screen(Protocol):
    """Chooses which new tables to evaluate."""

    def propose(self, search: "Evolution", rng: torch.Generator) -> Tensor:
        """Bool [n, T, S] of tables that the search has not evaluated."""


@dataclass(frozen=True)
class Front:
    """Tables that no other dominates, by rising loss: `tables` bool [n, T, S] and `scores` [n, 2]."""

    tables: Tensor
    scores: Tensor


class Evolution:
    """An evolution of tables. It can be saved and resumed, and then finds the same to the bit.

    Args:
        seeds: bool [n, T, S], the first generation: hand-made tables and those of dynamic programming.
        population: how many tables survive a generation. ECAD: 72, or 24 for large models.
        children: how many new tables a generation evaluates; None: as many as survive.
        breeding: how children are made.
        seed: of all random numbers.

    Attributes:
        tables: bool [n, T, S], all tables that were evaluated, in order.
        scores: float64 [n, 2], their losses and costs.
        generation: how many generations were evaluated.

    Raises:
        ConfigError: there is no seed, a seed reuses at the first tick, or the population is below 2.
    """

    def __init__(
        self,
        seeds: Tensor,
        *,
        population: int = 24,
        children: int | None = None,
        breeding: Breeding | None = None,
        seed: int = 0,
    ) -> None:
        if population < 2:
            raise ConfigError(f"population: {population} cannot breed; give at least 2.")
        if not len(seeds) or not bool(seeds[:, 0].all()):
            raise ConfigError(
                "seeds: give at least one table; each must compute all sites at the first tick."
            )
        self.population = population
        self.children = population if children is None else children
        self.breeding = breeding or Breeding()
        self.generation = 0
        self.tables = seeds[:0]
        self.scores = torch.empty(0, 2, dtype=torch.float64)
        self._parents = torch.empty(0, dtype=torch.int64)  # rows of `tables`
        self._seen: set[bytes] = set()
        self._seeds = torch.stack(list({key(table): table for table in seeds}.values()))
        self._rng = torch.Generator().manual_seed(seed)

    @property
    def parents(self) -> Tensor:
        """The tables that survived the last generation, bool [n, T, S]."""
        return self.tables[self._parents]

    def knows(self, table: Tensor) -> bool:
        """Whether a table [T, S] has been evaluated."""
        return key(table) in self._seen

    @property
    def front(self) -> Front:
        """The Pareto front of all tables that were evaluated."""
        best = front(self.scores)
        return Front(self.tables[best], self.scores[best])

    def generations(self, evaluate: Evaluate, screen: Screen | None = None) -> Iterator["Evolution"]:
        """Evaluates one generation after another, and yields this search after each: to log it, `save` it, or stop.

        It ends when no new table can be bred.

        Args:
            evaluate: scores tables.
            screen: chooses the children; None: all that are bred are evaluated.
        """
        while len(tables := self.ask(screen)):
            self.tell(tables, evaluate(tables))
            yield self

    def ask(self, screen: Screen | None = None) -> Tensor:
        """The tables to evaluate next, bool [n, T, S]: first the seeds, later children that were not evaluated before."""
        if not self.generation:
            return self._seeds
        if screen is not None:
            return screen.propose(self, self._rng)
        scores = self.scores[self._parents]
        return self.breeding.children(self.parents, scores, self.children, self._seen, self._rng)

    def tell(self, tables: Tensor, scores: Tensor) -> None:
        """Takes the scores [n, 2] of the tables that `ask` returned; the fittest of parents and children survive.

        Raises:
            ConfigError: a score is missing or not finite.
        """
        if scores.shape != (len(tables), 2) or not bool(scores.isfinite().all()):
            raise ConfigError(f"scores: give a finite loss and cost for each of the {len(tables)} tables.")
        first = len(self.tables)
        self._seen |= {key(table) for table in tables}
        self.tables = torch.cat([self.tables, tables])
        self.scores = torch.cat([self.scores, scores.double()])
        rivals = torch.cat([self._parents, torch.arange(first, len(self.tables))])
        self._parents = rivals[fitness(self.scores[rivals])[: self.population]]
        self.generation += 1

    def save(self, path: Path) -> None:
        """Writes everything that the search needs to continue. If this is interrupted, the old file stays."""
        settings = {
            "population": self.population,
            "children": self.children,
            "generation": self.generation,
            "breeding": asdict(self.breeding),
        }
        tensors = {
            "tables": self.tables,
            "scores": self.scores,
            "parents": self._parents,
            "seeds": self._seeds,
            "rng": self._rng.get_state(),
        }
        save_checkpoint(path, KIND, tensors, settings)

    @classmethod
    def load(cls, path: Path) -> "Evolution":
        """A search as it was saved. It finds what it would have found without the interruption.

        Raises:
            ScheduleError: the file is damaged, or not a checkpoint of a search.
        """
        tensors, settings = load_checkpoint(path, KIND)
        search = cls(
            tensors["seeds"],
            population=settings["population"],
            children=settings["children"],
            breeding=Breeding(**settings["breeding"]),
        )
        search.generation = settings["generation"]
        search.tables, search.scores = tensors["tables"], tensors["scores"]
        search._parents = tensors["parents"]
        search._seen = {key(table) for table in search.tables}
        search._rng.set_state(tensors["rng"])
        return search
