"""A trial: tables are rendered and compared with the full runs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from diffcache.profiling.full_runs import FullRuns
from diffcache.profiling.pictures import psnr
from diffcache.profiling.record import Call
from diffcache.profiling.space import Space
from diffcache.recipes.replay import ReplayConfig

Loss = Callable[[Tensor, Tensor], float]
"""Pictures of a candidate and of the full runs, [N, ..., H, W] in 0..1, to what shall be small."""


def minus_psnr(pictures: Tensor, full: Tensor) -> float:
    """Minus the mean PSNR over samples, in dB."""
    return -float(psnr(pictures, full).mean())


def mean_square(pictures: Tensor, full: Tensor) -> float:
    """Mean squared error; unlike minus PSNR it adds up."""
    return float((pictures.double() - full.double()).square().mean())


class Trial:
    """Scores tables by what a pipeline makes of some calls: the `Evaluate` of a search.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of each; their generators are rewound for every table.
        space: what the tables are of.
        loss: the quality; a reward is given with its sign turned.
    """

    def __init__(self, pipe: Any, calls: Sequence[Call], space: Space, loss: Loss = minus_psnr) -> None:
        self.runs = FullRuns(pipe, calls)
        self.space = space
        self.loss = loss

    def __call__(self, tables: Tensor) -> Tensor:
        """Tables, bool [n, T, S], to scores, float64 [n, 2]: loss, and share of the full run's work."""
        losses = [self._loss(table) for table in tqdm(tables, desc="candidates", leave=False)]
        cost = self.space.compute(tables)
        return torch.stack([torch.tensor(losses, dtype=torch.float64), cost], 1)

    def pictures(self, table: Tensor) -> Tensor:
        """What the pipeline makes of the calls with a table [T, S]."""
        return self.runs.cached(ReplayConfig(schedule=self.space.schedule(table, {})))

    def _loss(self, table: Tensor) -> float:
        return self.loss(self.pictures(table), self.runs.pictures)
