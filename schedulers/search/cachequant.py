"""CacheQuant's dynamic programming schedule (DPS, arXiv 2503.01323), for one cached feature."""

from torch import Tensor

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.partition import Partitions


def dps(drift: Tensor, groups: int) -> Tensor:
    """The ticks to compute, bool [T], at which holding errs least; as many as there are groups.

    The run is cut into groups of ceil(N / 2) to 2 * N ticks, where N = ceil(T / groups) is the published interval; each group
    computes its first.

    Args:
        drift: [T, T]; entry [a, t] is the error at t if the feature of a is held. Published: the mean absolute difference.
        groups: how many ticks are computed. Published: ceil(T / N).

    Raises:
        ConfigError: the number of groups is out of range, or no cut keeps these bounds.
    """
    num_ticks = drift.shape[-1]
    if not 1 <= groups <= num_ticks:
        raise ConfigError(f"groups: {groups} is not between 1 and the {num_ticks} ticks of the run.")
    interval = -(-num_ticks // groups)
    shortest = min(-(-interval // 2), num_ticks // groups)
    cuts = Partitions(drift.unsqueeze(0), groups, shortest=shortest, longest=min(2 * interval, num_ticks))
    return cuts.table([groups])[:, 0]
