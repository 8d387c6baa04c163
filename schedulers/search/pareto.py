"""Pareto order of scores: ranks, crowding distance, front and hypervolume. All objectives are minimised."""

import torch
from torch import Tensor


def ranks(scores: Tensor) -> Tensor:
    """Non-dominated sorting (NSGA-II, Deb et al. 2002): int64 [n], 0 for the front, 1 for the front of the others, ...

    Args:
        scores: [n, objectives].
    """
    better = (scores.unsqueeze(1) <= scores).all(-1) & (scores.unsqueeze(1) < scores).any(-1)
    rank = torch.full((len(scores),), -1)
    level = 0
    while bool((rank < 0).any()):
        left = rank < 0
        beaten = (better & left.unsqueeze(1)).any(0)
        rank[left & ~beaten] = level
        level += 1
    return rank


def crowding(scores: Tensor) -> Tensor:
    """Crowding distance of the scores of one front, float64 [n]; infinite at both ends.

    Args:
        scores: [n, objectives].
    """
    distance = torch.zeros(len(scores), dtype=torch.float64)
    for column in scores.double().T:
        order = column.argsort(stable=True)
        spread = column[order[-1]] - column[order[0]]
        distance[order[[0, -1]]] = torch.inf
        if spread > 0:
            distance[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / spread
    return distance


def fitness(scores: Tensor) -> Tensor:
    """NSGA-II's order of preference, int64 [n]: indices by rising rank, then by falling crowding distance."""
    rank = ranks(scores)
    distance = torch.zeros(len(scores), dtype=torch.float64)
    for level in range(int(rank.max()) + 1):
        distance[rank == level] = crowding(scores[rank == level])
    by_distance = distance.argsort(descending=True, stable=True)
    return by_distance[rank[by_distance].argsort(stable=True)]


def front(scores: Tensor) -> Tensor:
    """Indices of the scores that no other dominates, by the first objective; of equal scores one."""
    best = (ranks(scores) == 0).nonzero().flatten()
    best = best[scores[best, 0].argsort(stable=True)]
    fresh = torch.ones(len(best), dtype=torch.bool)
    fresh[1:] = (scores[best][1:] != scores[best][:-1]).any(-1)
    return best[fresh]


def hypervolume(scores: Tensor, reference: Tensor) -> float:
    """The area that scores of two objectives dominate below a reference point.

    Args:
        scores: [n, 2]. Scores that are not below the reference in both objectives do not count.
        reference: [2].
    """
    inside = scores[(scores < reference).all(-1)].double()
    if not len(inside):
        return 0.0
    best = inside[front(inside)]
    floors = torch.cat([reference[1:].double(), best[:-1, 1]])
    return float(((reference[0] - best[:, 0]) * (floors - best[:, 1])).sum())
