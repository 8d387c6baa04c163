"""One schedule for all sites: every site computes at the same ticks."""

from torch import Tensor

from diffcache.schedulers.search.partition import Partitions


def shared(drifts: Tensor, updates: int) -> Tensor:
    """Bool [T, S]: the `updates` ticks that hold best when all sites compute together.

    Schedules that are best for each site alone (`adaptive_caching`, `allocate`) compute sites on a stream that others
    have left stale, which no sum of drifts accounts for; this one does not, and can be much the better seed.

    Args:
        drifts: [S, T, T]; "mse" weighs sites by what they add to the stream, and large errors more.
        updates: ticks that are computed, the first among them.

    Raises:
        ConfigError: `updates` out of range.
    """
    return Partitions(drifts.sum(0, keepdim=True), updates).table([updates]).expand(-1, len(drifts)).clone()
