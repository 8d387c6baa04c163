"""One compute budget shared by all sites: how often to compute each, and when (a multiple-choice knapsack)."""

from collections.abc import Sequence
from math import gcd

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.partition import Partitions

GRID = 10_000


def allocate(
    drifts: Tensor,
    prices: Sequence[int],
    budget: int,
    longest: int | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """The table, bool [T, S], with the least total drift that a budget can pay for.

    Each site's best schedule for every number of computed ticks comes from `Partitions`; which number each gets is
    decided together. It assumes that the errors of sites add up. Exact where the prices' greatest common divisor is
    at least 1 / 10000 of the budget; else prices are rounded up to that grid, so the budget is never exceeded.

    Args:
        drifts: [S, T, T]; entry [s, a, t] is what holding a's feature costs site s at t.
        prices: cost of computing each site once, in whole MACs (or any other unit, such as microseconds).
        budget: cost of the whole run, in the same unit.
        longest: longest group in ticks (None: T); with it long runs cost O(S T^2 longest), not O(S T^3).
        weights: [S], how much a site's drift matters; None: all alike.

    Raises:
        ConfigError: the budget does not pay for every site once (`longest` may need more), or a price is not positive.
    """
    if min(prices) < 1:
        raise ConfigError("prices: each must be a positive whole number.")
    num_ticks = drifts.shape[-1]
    weighted = drifts if weights is None else drifts * weights[:, None, None]
    cuts = Partitions(weighted, num_ticks, longest=longest)
    unit = max(gcd(*prices), -(-budget // GRID))
    counts = torch.arange(1, num_ticks + 1)
    offers = [(counts * price + unit - 1) // unit for price in prices]
    groups = _choose(cuts.costs[:, 1:], offers, budget // unit)
    if groups is None:
        fewest = -(-num_ticks // (longest or num_ticks))
        least = unit * sum(int(offer[fewest - 1]) for offer in offers)
        raise ConfigError(
            f"budget: {budget} does not compute each site {fewest} times; give at least {least}."
        )
    return cuts.table(groups)


def _choose(costs: Tensor, offers: Sequence[Tensor], capacity: int) -> list[int] | None:
    """The number of groups for each site (costs [S, K], offers S x [K]); None where nothing fits.

    least[u] is the least cost of the sites so far when they use at most u units.
    """
    least = torch.zeros(capacity + 1, dtype=torch.float64)
    taken = torch.zeros(len(offers), capacity + 1, dtype=torch.int64)
    for site, weights in enumerate(offers):
        left = torch.arange(capacity + 1) - weights.unsqueeze(1)  # [K, units]
        total = (least[left.clamp_min(0)] + costs[site].unsqueeze(1)).masked_fill(left < 0, torch.inf)
        least, taken[site] = total.min(0)
    if not bool(least[capacity].isfinite()):
        return None
    groups, units = [0] * len(offers), capacity
    for site in range(len(offers) - 1, -1, -1):
        chosen = int(taken[site, units])
        groups[site] = chosen + 1
        units -= int(offers[site][chosen])
    return groups
