"""Local search over the ticks that a schedule computes: it moves one tick at a time and keeps what lowers the loss.

It is for losses that are expensive, such as those of rendered pictures: it needs few of them, no gradient, and no model.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import isnan
from typing import NamedTuple

from diffcache.schedulers.errors import ConfigError

TickList = tuple[int, ...]
"""The computed ticks of a run by rising number; all others are reused."""


class Found(NamedTuple):
    """The result of a local search.

    Attributes:
        ticks: the list of ticks of least loss.
        loss: of these ticks.
    """

    ticks: TickList
    loss: float


class _Move(NamedTuple):
    """Computes the tick `added` instead of the tick `removed`."""

    removed: int
    added: int

    @property
    def distance(self) -> int:
        return abs(self.removed - self.added)


def local_search(
    starts: Iterable[Iterable[int]],
    num_ticks: int,
    loss: Callable[[TickList], float],
    trials: int,
) -> Found:
    """Searches for ticks of less loss, as many as the best of some starts has. The result is no worse than that start.

    A trial computes another tick instead of one that is computed; the first tick stays. Moves that have not failed yet are
    tried first, then short ones before long ones, and of equally long ones those after which the gaps are most even. The search
    continues from ticks that lower the loss as soon as it finds them. It tries nothing twice, and ends early if no move is left:
    then no ticks that differ by one move are better.

    Args:
        starts: lists of computed ticks; each is a trial, in this order.
        num_ticks: length of the run.
        loss: of a list of ticks; called once for each.
        trials: how often it is called at most.

    Raises:
        ConfigError: there is no start or no trial, a start reuses the first tick or leaves the run, or a loss is not a number.
    """
    first = list(dict.fromkeys(tuple(sorted(set(start))) for start in starts))
    if not first or trials < 1:
        raise ConfigError("local search: give at least one start and one trial.")
    for start in first:
        if not start or start[0] != 0 or start[-1] >= num_ticks:
            raise ConfigError(f"starts: {start} must compute tick 0, and none beyond tick {num_ticks - 1}.")
    losses = {ticks: _number(loss(ticks)) for ticks in first[:trials]}
    best = min(losses, key=losses.__getitem__)
    failures: Counter[_Move] = Counter()
    while len(losses) < trials:
        fresh = [move for move in _moves(best, num_ticks) if _moved(best, move) not in losses]
        if not fresh:
            break
        gaps = {move: _unevenness(_moved(best, move), num_ticks) for move in fresh}
        move = min(fresh, key=lambda move: (failures[move], move.distance, gaps[move]))
        ticks = _moved(best, move)
        losses[ticks] = _number(loss(ticks))
        if losses[ticks] < losses[best]:
            best = ticks
        else:
            failures[move] += 1
    return Found(best, losses[best])


def _number(loss: float) -> float:
    if isnan(loss):
        raise ConfigError("loss: not a number, so nothing can be compared with it; look at what is rendered.")
    return loss


def _moves(ticks: TickList, num_ticks: int) -> Iterator[_Move]:
    reused = sorted(set(range(num_ticks)) - set(ticks))
    return (_Move(removed, added) for removed in ticks[1:] for added in reused)


def _moved(ticks: TickList, move: _Move) -> TickList:
    return tuple(sorted({*ticks, move.added} - {move.removed}))


def _unevenness(ticks: TickList, num_ticks: int) -> int:
    """The sum of squared distances between computed ticks, least where they are even."""
    ends = (*ticks[1:], num_ticks)
    return sum((end - tick) ** 2 for tick, end in zip(ticks, ends, strict=True))
