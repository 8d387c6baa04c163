"""The cheapest path through a run: which ticks to compute, where a jump's cost may depend on the jump before it."""

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError


def cheapest_path(costs: Tensor, count: int, first: int = 1) -> list[int]:
    """The ticks to compute, by DPCache's dynamic programme (arXiv 2602.22654): D[m, k] = min over j of D[m-1, j] + C[P[m-1, j], j, k].

    P[m, k] is the j that D[m, k] was found with; so each state keeps one way to get there. With costs that do not depend on the
    jump before, the path is the shortest.

    Args:
        costs: C, [T + 1, T + 1, T + 1]. C[i, j, k] is the cost of reusing the ticks between j and k, where i is the computed tick
            before j; i = j = 0 at the run's start, and k = T for its end. Infinite where a jump is not allowed.
        count: how many ticks are computed, tick 0 among them.
        first: as many ticks at the start are all computed.

    Raises:
        ConfigError: no path has so many ticks.
    """
    end = len(costs) - 1
    costs = costs.double().clone()
    for tick in range(min(first, end) - 1):
        costs[:, tick, tick + 2 :] = torch.inf
    best = torch.full((end + 1,), torch.inf, dtype=torch.float64)
    best[0] = 0
    before = torch.zeros(end + 1, dtype=torch.long)
    ticks, befores = torch.arange(end + 1), []
    backwards = torch.ones(end + 1, end + 1, dtype=torch.bool).tril()
    for _ in range(count):
        reached = best[:, None] + costs[before, ticks].masked_fill(backwards, torch.inf)
        best, before = reached.min(dim=0)
        befores.append(before)
    if not best[end].isfinite():
        raise ConfigError(f"count: no path computes {count} of {end} ticks within the bounds of its jumps.")
    path = [end]
    for before in reversed(befores):
        path.append(int(before[path[-1]]))
    return path[:0:-1]
