"""CacheQuant's dynamic programming schedule (DPS): one cached feature, groups of bounded length."""

from torch import Tensor

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.partition import Partitions


def dps(drift: Tensor, interval: int) -> Tensor:
    """The ticks to compute, bool [T], that hold best at about the cost of computing every `interval`-th.

    ceil(T / interval) groups of ceil(interval / 2) to 2 * interval ticks, as in CacheQuant (arXiv 2503.01323).

    Args:
        drift: [T, T], what `drift_of` returns; the published schedule uses "l1".
        interval: mean distance between computed ticks.

    Raises:
        ConfigError: an interval out of range, or one that leaves no schedule within the bounds.
    """
    num_ticks = drift.shape[-1]
    if not 1 <= interval <= num_ticks:
        raise ConfigError(f"interval: {interval} is not between 1 and the {num_ticks} ticks of the run.")
    groups = -(-num_ticks // interval)
    cuts = Partitions(drift.unsqueeze(0), groups, shortest=-(-interval // 2), longest=2 * interval)
    return cuts.table([groups])[:, 0]
