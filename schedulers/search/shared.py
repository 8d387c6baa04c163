"""One schedule for all sites: every site computes at the same ticks."""

from torch import Tensor

from diffcache.schedulers.search.partition import Partitions


def shared(drifts: Tensor, updates: int) -> Tensor:
    """The table, bool [T, S], of least total drift in which all sites compute at the same `updates` ticks.

    If each site has a schedule of its own (`adaptive_caching`, `allocate`), sites compute on inputs that others have left stale,
    and no sum of drifts counts that error. Here none does, so this can be a much better seed.

    Args:
        drifts: [S, T, T]. The "mse" metric weighs sites by what they add to the stream, and large errors more.
        updates: ticks that are computed, the first tick among them.

    Raises:
        ConfigError: `updates` is out of range.
    """
    return Partitions(drifts.sum(0, keepdim=True), updates).table([updates]).expand(-1, len(drifts)).clone()
