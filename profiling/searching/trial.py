"""A trial: tables are rendered and compared with the full runs."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from diffcache.config import CacheConfig
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.pictures import psnr
from diffcache.profiling.searching.space import Space
from diffcache.recipes.replay import ReplayConfig

REPEATS = 3
"""Measurements of wall time, of which the median counts."""
Cost = Callable[[FullRuns, CacheConfig], float]
"""Full runs and a candidate to what it costs, as a share of theirs."""
Loss = Callable[[Tensor, Tensor], float]
"""Pictures of a candidate and of the full runs, [N, ..., H, W] in 0..1, to what shall be small."""


def minus_psnr(pictures: Tensor, full: Tensor) -> float:
    """Minus the mean PSNR over samples, in dB."""
    return -float(psnr(pictures, full).mean())


def mean_square(pictures: Tensor, full: Tensor) -> float:
    """Mean squared error; unlike minus PSNR it adds up."""
    return float((pictures.double() - full.double()).square().mean())


def wall_time(runs: FullRuns, candidate: CacheConfig) -> float:
    """Median share of the full runs' wall time, of calls that alternate; it depends on the machine and its load."""
    shares = []
    for _ in range(REPEATS):
        full, cached = runs.seconds(None), runs.seconds(candidate)
        shares.append(cached / full)
    return median(shares)


class Trial:
    """Scores tables by what a pipeline makes of some calls: the `Evaluate` of a search.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of each; their generators are rewound for every table.
        space: what the tables are of.
        loss: the quality; a reward is given with its sign turned.
        cost: what is measured of each candidate; None: its share of the full run's work, which is known.
    """

    def __init__(
        self,
        pipe: Any,
        calls: Sequence[Call],
        space: Space,
        loss: Loss = minus_psnr,
        cost: Cost | None = None,
    ) -> None:
        self.runs = FullRuns(pipe, calls)
        self.space = space
        self.loss = loss
        self.cost = cost

    def __call__(self, tables: Tensor) -> Tensor:
        """Tables, bool [n, T, S], to scores, float64 [n, 2]: loss, and cost as a share of the full run's."""
        scores = [self._score(table) for table in tqdm(tables, desc="candidates", leave=False)]
        return torch.tensor(scores, dtype=torch.float64).view(-1, 2)

    def pictures(self, table: Tensor) -> Tensor:
        """What the pipeline makes of the calls with a table [T, S]."""
        return self.runs.cached(self._config(table))

    def _score(self, table: Tensor) -> tuple[float, float]:
        loss = self.loss(self.pictures(table), self.runs.pictures)
        if self.cost is None:
            return loss, float(self.space.compute(table))
        return loss, self.cost(self.runs, self._config(table))

    def _config(self, table: Tensor) -> CacheConfig:
        return ReplayConfig(schedule=self.space.schedule(table, {}))
