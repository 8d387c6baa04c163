"""A proposal with what it measures, and the best of several."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.profiling.searching.ranking import best_ranked


@dataclass(frozen=True)
class Judged:
    """A proposal, and what it measures on the calls to choose on.

    Attributes:
        config: the method: a replay of its schedule, or itself if it decides in the run.
        compute: share of the full run's work.
        values: of each sample; the larger, the better.
    """

    config: CacheConfig
    compute: float
    values: Tensor

    @property
    def is_finite(self) -> bool:
        """Whether all pictures were numbers: a method may overflow where the full run does not."""
        return bool(self.values.isfinite().all())

    @property
    def mean(self) -> float:
        """Over the samples."""
        return float(self.values.mean())


def the_best_of(found: Sequence[Judged]) -> Judged:
    """Of several proposals the one with the best mean rank over the samples (see `best_ranked`)."""
    return found[best_ranked([one.values for one in found])]
