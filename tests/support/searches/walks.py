"""Drifts of random walks, and all tables of one site, for checking searches against brute force."""

from collections.abc import Iterator
from itertools import combinations, pairwise

import torch
from support.searches.toy import drift_of
from torch import Tensor

from diffcache.schedulers.search.drift import staleness


def drifts(sites: int, ticks: int, seed: int = 0) -> Tensor:
    """[S, T, T] of random walks, so that drift is neither smooth nor symmetric in length."""
    generator = torch.Generator().manual_seed(seed)
    walks = torch.randn(sites, ticks, 5, generator=generator).cumsum(1)
    return torch.stack([drift_of(walk) for walk in walks])


def every_table(ticks: int, groups: int, shortest: int, longest: int) -> Iterator[Tensor]:
    """All tables of one site that cut the ticks into so many groups within the bounds."""
    for cuts in combinations(range(1, ticks), groups - 1):
        edges = (0, *cuts, ticks)
        if all(shortest <= b - a <= longest for a, b in pairwise(edges)):
            table = torch.zeros(ticks, 1, dtype=torch.bool)
            table[list(edges[:-1])] = True
            yield table


def error_of(table: Tensor, drift: Tensor) -> float:
    """The total error of holding in a table."""
    return float(staleness(table, drift).sum())
