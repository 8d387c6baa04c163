"""One compute budget shared by all sites: how often to compute each, and when (a multiple-choice knapsack)."""

from collections.abc import Sequence
from math import gcd

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.partition import Partitions

GRID = 10_000
"""Steps of the budget in the dynamic programme; prices are rounded up to them where they have no larger common divisor."""


def allocate(drifts: Tensor, prices: Sequence[int], budget: int) -> Tensor:
    """The table, bool [T, S], of least total drift within a budget.

    `Partitions` has the best schedule of each site for every number of computed ticks. This chooses the number of each site,
    so that the sum of their drifts is least: it assumes that the errors of sites add up. The result is exact if the greatest
    common divisor of the prices is at least 1 / 10000 of the budget. Otherwise prices are rounded up to that grid, so that the
    budget is never exceeded.

    Args:
        drifts: [S, T, T]; entry [s, a, t] is the error of site s at t if the feature of a is held.
        prices: cost of computing each site once, in whole MACs or any other unit.
        budget: cost of the whole run, in the same unit.

    Raises:
        ConfigError: the budget does not pay for computing each site once, or a price is not positive.
    """
    if min(prices) < 1:
        raise ConfigError("prices: each must be a positive whole number.")
    num_ticks = drifts.shape[-1]
    cuts = Partitions(drifts, num_ticks)
    unit = max(gcd(*prices), -(-budget // GRID))
    counts = torch.arange(1, num_ticks + 1)
    offers = [(counts * price + unit - 1) // unit for price in prices]
    groups = _choose(cuts.costs[:, 1:], offers, budget // unit)
    if groups is None:
        least = unit * sum(int(offer[0]) for offer in offers)
        raise ConfigError(f"budget: {budget} does not compute each site once; give at least {least}.")
    return cuts.table(groups)


def _choose(costs: Tensor, offers: Sequence[Tensor], capacity: int) -> list[int] | None:
    """The number of groups of each site; None where no choice fits.

    least[u] is the least drift of the sites so far if they pay at most u units.

    Args:
        costs: [S, K], the drift of each site with 1, ..., K groups.
        offers: for each site [K], what these groups cost in units.
        capacity: units that may be spent.
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
