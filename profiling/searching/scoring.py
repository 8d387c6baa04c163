"""Scoring: the loss and the cost of tables, from the pictures that a pipeline makes with them."""

from collections.abc import Callable, Sequence
from functools import cached_property
from statistics import median
from typing import Any

import torch
from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.pictures import psnr
from diffcache.profiling.recording.processes import broadcast
from diffcache.profiling.searching.space import Space
from diffcache.recipes.replay import ReplayConfig

REPEATS = 3
"""Measurements of wall time; their median counts."""

Cost = Callable[[FullRuns, CacheConfig], float]
"""From full runs and a method to the method's cost, as a share of theirs."""

Loss = Callable[[Tensor, Tensor], float]
"""From a candidate's pictures and the full runs', [N, ..., H, W] in 0..1, to a number that is to be small."""


def minus_psnr(pictures: Tensor, full: Tensor) -> float:
    """Minus the mean PSNR over samples, in dB."""
    return -float(psnr(pictures, full).mean())


def mean_square(pictures: Tensor, full: Tensor) -> float:
    """Mean squared error. Unlike minus PSNR it is additive."""
    return float((pictures.double() - full.double()).square().mean())


def wall_time(runs: FullRuns, candidate: CacheConfig) -> float:
    """Median share of the full runs' wall time, of calls that alternate with them. It depends on the machine and its load."""
    shares = []
    for _ in range(REPEATS):
        full, cached = runs.seconds(None), runs.seconds(candidate)
        shares.append(cached / full)
    return median(shares)


class Scorer:
    """Scores tables by the pictures that a pipeline makes with them: the `Evaluate` of a search.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of each call. Their generators are set back to their seeds for every table.
        space: of the tables.
        loss: measures quality. A reward is passed with its sign turned.
        cost: measures each candidate; None: its share of the full run's work, which is known.
    """

    def __init__(
        self,
        pipe: Any,
        calls: Sequence[Call],
        space: Space,
        loss: Loss = minus_psnr,
        cost: Cost | None = None,
    ) -> None:
        self.pipe = pipe
        self.calls = calls
        self.space = space
        self.loss = loss
        self.cost = cost

    @cached_property
    def runs(self) -> FullRuns:
        """The full runs, which are rendered when they are first needed."""
        return FullRuns(self.pipe, self.calls)

    def __call__(self, tables: Tensor) -> Tensor:
        """From tables, bool [n, T, S], to scores, float64 [n, 2]: loss, and cost as a share of the full run's."""
        scores = [self._score(table) for table in tables]
        return torch.tensor(scores, dtype=torch.float64).view(-1, 2)

    def pictures(self, table: Tensor) -> Tensor:
        """The pictures that the pipeline makes with a table [T, S]."""
        return self.runs.cached(self._config(table))

    def loss_of(self, table: Tensor) -> float:
        """The loss of a table [T, S]."""
        return self.loss(self.pictures(table), self.runs.pictures)

    def _score(self, table: Tensor) -> tuple[float, float]:
        loss = self.loss_of(table)
        if self.cost is None:
            return loss, float(self.space.compute(table))
        return loss, broadcast(self.cost(self.runs, self._config(table)))

    def _config(self, table: Tensor) -> CacheConfig:
        return ReplayConfig(schedule=self.space.schedule(table, {}))
