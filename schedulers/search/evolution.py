"""Evolution of tables (ECAD, arXiv 2506.15682): NSGA-II towards a front of quality and cost.

A loop of our own: the library that ECAD uses brings 280 MB of dependencies, calls another quantity its
mutation rate, and checkpoints by pickle.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.search.breeding import Breeding, key
from diffcache.schedulers.search.pareto import fitness, front

Evaluate = Callable[[Tensor], Tensor]
"""Tables, bool [n, T, S], to scores [n, 2]: loss and cost, both minimised. A batch, so that processes can share it."""


class Screen(Protocol):
    """Proposes the tables that are worth evaluating."""

    def propose(self, search: "Evolution", rng: torch.Generator) -> Tensor:
        """Bool [n, T, S] of tables that the search has not evaluated."""


@dataclass(frozen=True)
class Front:
    """Tables that no other dominates, by rising loss: `tables` bool [n, T, S], `scores` [n, 2]."""

    tables: Tensor
    scores: Tensor


class Evolution:
    """A search that can be asked for tables, told their scores, saved, and resumed to the bit.

    Args:
        seeds: bool [n, T, S]: hand-made tables and those of dynamic programming; the first generation.
        population: how many survive a generation. ECAD: 72, or 24 for large models.
        children: how many are evaluated in one; None: as many as survive.
        breeding: how children are made.
        seed: of all randomness.

    Attributes:
        tables: bool [n, T, S], all that was evaluated, in order.
        scores: float64 [n, 2], their losses and costs.
        generation: how many have been told.

    Raises:
        ConfigError: there is no seed, or one that reuses at the first tick; a population below 2.
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
        """The population that lives, bool [n, T, S]."""
        return self.tables[self._parents]

    def knows(self, table: Tensor) -> bool:
        """Whether a table [T, S] has been evaluated."""
        return key(table) in self._seen

    @property
    def front(self) -> Front:
        """The best of all that was evaluated."""
        best = front(self.scores)
        return Front(self.tables[best], self.scores[best])

    def generations(self, evaluate: Evaluate, screen: Screen | None = None) -> Iterator["Evolution"]:
        """Runs on, and hands itself back after each generation: log, `save` and stop there.

        Ends by itself when no unseen table can be bred.
        """
        while len(tables := self.ask(screen)):
            self.tell(tables, evaluate(tables))
            yield self

    def ask(self, screen: Screen | None = None) -> Tensor:
        """The next generation, bool [n, T, S]: the seeds first, then children that were never evaluated."""
        if not self.generation:
            return self._seeds
        if screen is not None:
            return screen.propose(self, self._rng)
        scores = self.scores[self._parents]
        return self.breeding.children(self.parents, scores, self.children, self._seen, self._rng)

    def tell(self, tables: Tensor, scores: Tensor) -> None:
        """Takes the scores [n, 2] of what was asked for; the fittest of parents and children live on.

        Raises:
            ConfigError: a score is missing, or not a number.
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
        """Writes everything that the search goes on from, at once: an interrupted write leaves the old file."""
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
        part = path.with_suffix(".part")
        save_file({k: t.contiguous() for k, t in tensors.items()}, part, {"search": json.dumps(settings)})
        os.replace(part, path)

    @classmethod
    def load(cls, path: Path) -> "Evolution":
        """A search as it was saved; it goes on as if it had never stopped.

        Raises:
            ScheduleError: the file is not a whole checkpoint of a search.
        """
        try:
            with safe_open(path, "pt") as file:
                settings = json.loads((file.metadata() or {})["search"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, KeyError) as error:
            raise ScheduleError(
                f"{path}: not a checkpoint of a search, or damaged; begin a new search."
            ) from error
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
