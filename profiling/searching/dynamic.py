"""Dynamic programming from a recording: the schedules that hold best for a share of the compute."""

from collections.abc import Callable
from contextlib import suppress

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
"""Ticks between two computed ones, at most, or twice their mean distance: further apart, one probe a tick says little."""
REPAIRED = 5
"""Feed-forwards that BAC's Bubbling Union repairs, as published for simulations."""


def dynamic_programming(space: Space, compute: float, plan: str = "shared") -> Schedule:
    """The schedule of least drift that a share of the full run's work pays for; nothing is rendered.

    Args:
        space: places, prices and drifts.
        compute: share of the full run's work, at most.
        plan: "shared": all places compute at the same ticks, where the pictures mind it least. "per-site": ticks of its own for each place, one budget
            for all. "bac": as many ticks for each place, then the Bubbling Union (arXiv 2506.13456, on relative L1 drifts
            in place of its cosines). The three agree where the place is the whole denoiser.

    Raises:
        ConfigError: an unknown plan, or a share that does not pay for one tick.
    """
    if plan not in PLANS:
        raise ConfigError(f"plan: {plan!r} is not one of {', '.join(PLANS)}.")
    table = PLANS[plan](space, space.budget(compute))
    return space.schedule(table, {"method": "dynamic programming", "plan": plan, "compute": compute})


def _shared(space: Space, budget: int) -> Tensor:
    """By the pictures' response where it was probed; by drifts where it was not, or so few ticks leave it no choice."""
    count = _ticks(space, budget)
    if space.response is not None:
        longest = max(LONGEST, -(-2 * space.num_ticks // count))
        with suppress(
            ConfigError
        ):  # it asks for the first `order + 1` ticks, with hindsight for one near the end too
            return space.together(placements(space.response, count, longest)[-1])
    return shared(space.drifts, count)


def _per_site(space: Space, budget: int) -> Tensor:
    return allocate(space.drifts, space.prices, budget)


def _bac(space: Space, budget: int) -> Tensor:
    """As many ticks for each place as leave room for the repair."""
    blocks = [place.split("..")[0].rpartition(".")[0] for place in space.places]
    layers = [list(dict.fromkeys(blocks)).index(block) for block in blocks]
    feed_forward = [kind == "feed-forward" for kind in space.kinds]
    restless = volatility(space.drifts)
    for updates in range(_ticks(space, budget), 1, -1):
        table = bubbling_union(
            adaptive_caching(space.drifts, updates),
            layers,
            feed_forward,
            restless,
            min(REPAIRED, sum(feed_forward)),
        )
        if int((table.sum(0) * torch.tensor(space.prices)).sum()) <= budget:
            return table
    return adaptive_caching(space.drifts, 1)


def _ticks(space: Space, budget: int) -> int:
    """How many ticks a budget pays for when every place computes at each."""
    return min(budget // sum(space.prices), space.num_ticks)


PLANS: dict[str, Callable[[Space, int], Tensor]] = {"shared": _shared, "per-site": _per_site, "bac": _bac}
