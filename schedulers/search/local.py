"""Local search over the ticks that a schedule computes: one is moved at a time, and what lowers the loss is kept.

For losses that must be rendered: it asks for few, and needs no gradient and no model of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import isnan
from typing import NamedTuple

from diffcache.schedulers.errors import ConfigError

Ticks = tuple[int, ...]
"""What is computed, by rising number; all other ticks of the run are reused."""


class Found(NamedTuple):
    """What a local search ends with.

    Attributes:
        ticks: those of least loss among all that were tried.
        loss: theirs.
        trials: how many sets of ticks were tried, the starts included.
    """

    ticks: Ticks
    loss: float
    trials: int


class _Move(NamedTuple):
    """One tick computed in place of another."""

    taken: int
    given: int

    @property
    def distance(self) -> int:
        return abs(self.taken - self.given)


def local_search(
    starts: Iterable[Iterable[int]],
    num_ticks: int,
    loss: Callable[[Ticks], float],
    trials: int,
    until: Callable[[Ticks], bool] = lambda ticks: False,
) -> Found:
    """Looks for as many ticks of less loss, from the best of some starts; never worse than that.

    A trial computes one other tick in place of one that is computed; the first tick stays. Moves that have not failed yet
    come first, then short ones before long ones (which swap ticks far apart), and of equally long ones those that leave
    the largest gaps smallest. What lowers the loss is gone on from at once. No set of ticks is tried twice, so that the
    search ends early where no move is left: there the ticks are the best of all that differ by one.

    Args:
        starts: sets of computed ticks; each is a trial, in this order.
        num_ticks: of the run.
        loss: of a set of ticks; asked for once for each.
        trials: how often it is asked at most.
        until: asked of the best start, and of whatever is better than all before it; where it says so, the search ends.

    Raises:
        ConfigError: no start or no trial, a start that reuses the first tick or lies outside of the run, or a loss that is
            not a number.
    """
    begun = list(dict.fromkeys(tuple(sorted(set(start))) for start in starts))
    if not begun or trials < 1:
        raise ConfigError("local search: give at least one start and one trial.")
    for start in begun:
        if not start or start[0] != 0 or start[-1] >= num_ticks:
            raise ConfigError(f"starts: {start} must compute tick 0, and none beyond tick {num_ticks - 1}.")
    losses = {ticks: _number(loss(ticks)) for ticks in begun[:trials]}
    best = min(losses, key=losses.__getitem__)
    failures: Counter[_Move] = Counter()
    done = until(best)
    while not done and len(losses) < trials:
        fresh = [move for move in _moves(best, num_ticks) if _moved(best, move) not in losses]
        if not fresh:
            break
        gaps = {move: _unevenness(_moved(best, move), num_ticks) for move in fresh}
        move = min(fresh, key=lambda move: (failures[move], move.distance, gaps[move]))
        ticks = _moved(best, move)
        losses[ticks] = _number(loss(ticks))
        if losses[ticks] < losses[best]:
            best = ticks
            done = until(best)
        else:
            failures[move] += 1
    return Found(best, losses[best], len(losses))


def _number(loss: float) -> float:
    if isnan(loss):
        raise ConfigError("loss: not a number, so that nothing can be better; look at what is rendered.")
    return loss


def _moves(ticks: Ticks, num_ticks: int) -> Iterator[_Move]:
    reused = sorted(set(range(num_ticks)) - set(ticks))
    return (_Move(taken, given) for taken in ticks[1:] for given in reused)


def _moved(ticks: Ticks, move: _Move) -> Ticks:
    return tuple(sorted({*ticks, move.given} - {move.taken}))


def _unevenness(ticks: Ticks, num_ticks: int) -> int:
    """Sum of the squared distances between computed ticks; the largest count most."""
    ends = (*ticks[1:], num_ticks)
    return sum((end - tick) ** 2 for tick, end in zip(ticks, ends, strict=True))
