"""CacheQuant's dynamic programming schedule (DPS, arXiv 2503.01323), for one cached feature."""

from torch import Tensor

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.partition import Partitions


def dps(drift: Tensor, interval: int) -> Tensor:
    """The ticks to compute, bool [T], at which holding errs least; about as many as every `interval`-th.

    The run is cut into ceil(T / interval) groups of ceil(interval / 2) to 2 * interval ticks; each group computes its first.

    Args:
        drift: [T, T], what `drift_of` returns. Published: by the "l1" metric.
        interval: mean distance between computed ticks.

    Raises:
        ConfigError: the interval is out of range, or no cut keeps these bounds.
    """
    num_ticks = drift.shape[-1]
    if not 1 <= interval <= num_ticks:
        raise ConfigError(f"interval: {interval} is not between 1 and the {num_ticks} ticks of the run.")
    groups = -(-num_ticks // interval)
    cuts = Partitions(drift.unsqueeze(0), groups, shortest=-(-interval // 2), longest=2 * interval)
    return cuts.table([groups])[:, 0]
