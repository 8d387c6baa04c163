"""Polishing: the ticks of a schedule are moved one at a time, and each move is judged by what a pipeline makes of it."""

from torch import Tensor

from diffcache.profiling.searching.space import Space
from diffcache.profiling.searching.trial import Trial
from diffcache.recipes.budget import spread
from diffcache.schedulers.search.local import Ticks, local_search


def even(space: Space, count: int) -> Tensor:
    """So many ticks evenly spread, at which all places compute: bool [T, S]."""
    return space.together(spread(space.num_ticks, count, 1))


def polished(trial: Trial, table: Tensor, candidates: int) -> Tensor:
    """A schedule of as many ticks and no greater loss, bool [T, S]; all places compute together.

    The search begins at the better of the schedule and as many ticks evenly spread (`local_search`).

    Args:
        trial: renders a candidate and judges it.
        table: bool [T, S], a schedule whose places compute together.
        candidates: how many are rendered at most, the two that it begins with included.
    """
    space = trial.space

    def loss(ticks: Ticks) -> float:
        return trial.loss(trial.pictures(space.together(ticks)), trial.runs.pictures)

    starts = [_ticks(start) for start in (table, even(space, int(table[:, 0].sum())))]
    return space.together(local_search(starts, space.num_ticks, loss, candidates).ticks)


def _ticks(table: Tensor) -> list[int]:
    ticks: list[int] = table[:, 0].nonzero().flatten().tolist()
    return ticks
