"""Dynamic programming: from a recording, the schedules of least error for a share of the compute. It renders nothing."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from diffcache.profiling.searching.space import Space
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.search.bac import adaptive_caching, bubbling_union, volatility
from diffcache.schedulers.search.knapsack import allocate
from diffcache.schedulers.search.response import placements
from diffcache.schedulers.search.shared import shared

LONGEST = 6
"""The largest distance between computed ticks; twice the mean distance where that is more. Our choice: probes of single ticks
say little about longer gaps."""

REPAIRED = 5
"""Feed-forwards that BAC's Bubbling Union repairs, as published for simulations."""


def dynamic_programming(space: Space, compute: float, variant: str = "shared") -> Schedule:
    """The schedule of least error within a share of the full run's work.

    Args:
        space: sites, prices and drifts.
        compute: share of the full run's work, at most.
        variant: how sites compute. The three agree if the only site is the whole denoiser.

            - "shared": all sites at the same ticks; by the pictures' response if it was probed, else by drifts.
            - "per-site": each site at ticks of its own, within one budget.
            - "bac": each site at equally many ticks of its own, and then the Bubbling Union, by the drifts of this space. (That
              is BAC's programme by other distances; `cosine_bac` has BAC's own.)

    Raises:
        ConfigError: the variant is unknown, or the share does not pay for one tick.
    """
    if variant not in VARIANTS:
        raise ConfigError(f"variant: {variant!r} is not one of {', '.join(VARIANTS)}.")
    table = VARIANTS[variant](space, space.budget(compute))
    return space.schedule(table, {"method": "dynamic programming", "variant": variant, "compute": compute})


def _shared(space: Space, budget: int) -> Tensor:
    """By response; by drifts where it was not probed, or where there are too few ticks to choose by it."""
    count = _ticks(space, budget)
    if space.response is not None:
        longest = max(LONGEST, -(-2 * space.num_ticks // count))
        # it needs the first `order + 1` ticks, and with hindsight one near the end
        with suppress(ConfigError):
            return space.together(placements(space.response, count, longest)[-1])
    return shared(space.drifts, count)


def _per_site(space: Space, budget: int) -> Tensor:
    return allocate(space.drifts, space.prices, budget)


def _bac(space: Space, budget: int, repaired: int) -> Tensor:
    """As many ticks for each site as leave enough of the budget for the repair."""
    prices = torch.tensor(space.prices)
    for updates in range(_ticks(space, budget), 1, -1):
        table = bac_table(space, updates, repaired)
        if int((table.sum(0) * prices).sum()) <= budget:
            return table
    return adaptive_caching(space.drifts, 1)


def bac_table(space: Space, updates: int, repaired: int) -> Tensor:
    """BAC as published, bool [T, S]: so many updates of each site, and those that the Bubbling Union adds.

    Args:
        space: of sub-layers. Volatility is the mean drift over all pairs of ticks (published: the mean L1 distance).
        updates: of each site, before the union.
        repaired: how many feed-forwards the union repairs; all where there are fewer.
    """
    blocks = [site.split("..")[0].rpartition(".")[0] for site in space.sites]
    layers = [list(dict.fromkeys(blocks)).index(block) for block in blocks]
    feed_forward = [kind == "feed-forward" for kind in space.kinds]
    return bubbling_union(
        adaptive_caching(space.drifts, updates),
        layers,
        feed_forward,
        volatility(space.drifts),
        min(repaired, sum(feed_forward)),
    )


def cosine_bac(space: Space, compute: float, repaired: int) -> Tensor:
    """BAC's table, bool [T, S], by the cosines of a recording with that metric.

    All sites have the same number of updates, the largest with which the Bubbling Union of `repaired` feed-forwards stays
    within the share.

    Args:
        space: of sub-layers, recorded with the metric "cosine".
        compute: share of the full run's work, at most.
        repaired: how many feed-forwards the union repairs; all where there are fewer.
    """
    return _bac(space, space.budget(compute), repaired)


def _ticks(space: Space, budget: int) -> int:
    """How many ticks a budget pays for if every site computes at each."""
    return min(budget // sum(space.prices), space.num_ticks)


VARIANTS: dict[str, Callable[[Space, int], Tensor]] = {
    "shared": _shared,
    "per-site": _per_site,
    "bac": partial(_bac, repaired=REPAIRED),
}
"""From a space and a budget to a table [T, S], by name."""
