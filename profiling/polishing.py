"""Polishing: the ticks of a schedule are moved one at a time, and each move is judged by what a pipeline makes of it."""

from collections.abc import Iterable

import torch
from torch import Tensor

from diffcache.profiling.space import Space
from diffcache.profiling.trial import Trial
from diffcache.recipes.budget import spread
from diffcache.schedulers.search.local import Ticks, local_search


def polished(trial: Trial, table: Tensor, candidates: int) -> Tensor:
    """A schedule of as many ticks and no greater loss, bool [T, S]; all places compute together.

    The search begins at the better of the schedule and as many ticks evenly spread (`local_search`).

    Args:
        trial: renders a candidate and judges it.
        table: bool [T, S], a schedule whose places compute together.
        candidates: how many are rendered at most, the two that it begins with included.
    """
    space = trial.space
    ticks = table[:, 0].nonzero().flatten().tolist()

    def loss(ticks: Ticks) -> float:
        return trial.loss(trial.pictures(_table(space, ticks)), trial.runs.pictures)

    starts = [ticks, spread(space.num_ticks, len(ticks), 1)]
    return _table(space, local_search(starts, space.num_ticks, loss, candidates).ticks)


def _table(space: Space, ticks: Iterable[int]) -> Tensor:
    table = torch.zeros(space.num_ticks, len(space.places), dtype=torch.bool)
    table[list(ticks)] = True
    return table
