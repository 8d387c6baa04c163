"""Polishing: a local search moves the ticks of a schedule one at a time, and a pipeline renders each candidate."""

from torch import Tensor

from diffcache.profiling.searching.scoring import Scorer
from diffcache.profiling.searching.space import Space
from diffcache.schedulers.search.local import TickList, local_search
from diffcache.schedulers.ticks import spread


def even(space: Space, count: int) -> Tensor:
    """The table, bool [T, S], in which all sites compute at `count` evenly spread ticks."""
    return space.together(spread(space.num_ticks, count))


def polished(scorer: Scorer, table: Tensor, candidates: int) -> Tensor:
    """A table, bool [T, S], that computes as many ticks and has no greater loss. All sites compute together.

    The search starts at the better of the table and as many evenly spread ticks (see `local_search`).

    Args:
        scorer: renders a candidate and measures its loss.
        table: bool [T, S], in which all sites compute together.
        candidates: how many are rendered at most, the two starts included.
    """
    space = scorer.space

    def loss(ticks: TickList) -> float:
        return scorer.loss_of(space.together(ticks))

    starts = [_ticks(start) for start in (table, even(space, int(table[:, 0].sum())))]
    return space.together(local_search(starts, space.num_ticks, loss, candidates).ticks)


def _ticks(table: Tensor) -> list[int]:
    ticks: list[int] = table[:, 0].nonzero().flatten().tolist()
    return ticks
