"""Lists of ticks: the static cache scheduler that computes one, and how to spread ticks over a run."""

from collections.abc import Iterable, Sequence

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.steps import Decision, Step


class Ticks(CacheScheduler):
    """Computes these ticks only."""

    by_site = False

    def __init__(self, computed: Iterable[int]) -> None:
        self.computed_ticks = frozenset(computed)

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return Decision.COMPUTE if step.tick in self.computed_ticks else Decision.PREDICT


def spread(num_ticks: int, count: int, warmup: int = 1, *, compute_last: bool = True) -> list[int]:
    """Spreads computed ticks over a run: the first few, and the others at even distances after them.

    Args:
        num_ticks: length of the run.
        count: how many ticks to compute, at most `num_ticks`.
        warmup: how many of them are the first ticks of the run.
        compute_last: the run's last tick is among them. Otherwise a gap as long as the others follows the last of them.

    Returns:
        `count` ticks by rising number.
    """
    first = list(range(min(warmup, count)))
    left = count - len(first)
    begin, last = len(first) - 1, num_ticks - 1
    gaps, end = (left, last) if compute_last else (left + 1, num_ticks)
    ticks = [begin + round((end - begin) * (i / gaps)) for i in range(1, left + 1)]
    for i in reversed(range(left)):  # two may be rounded to the same tick: the tick before is free
        ticks[i] = min(ticks[i], last if i == left - 1 else ticks[i + 1] - 1)
    return [*first, *ticks]
