"""Confirming: what a search found replaces its start only if it is better on samples that the search did not see.

The best of many candidates on few samples is partly the luckiest one, and luck does not repeat on other samples.
"""

from collections.abc import Iterable
from math import comb

from torch import Tensor

from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.schedule import Schedule

CHANCE = 0.05
"""Significance level of the sign test."""

FEWEST = 5
"""The fewest samples that can confirm anything: that four of four are better has a chance of 6%."""


def confirmed(runs: FullRuns, start: Schedule, found: Iterable[Schedule]) -> Schedule:
    """The schedule that a search started with, or one that beats it on these samples.

    Each schedule in turn replaces the best so far if its PSNR is higher on average, and on more samples than chance explains
    (one-sided sign test at the level `CHANCE`).

    Args:
        runs: full runs of samples that the search did not see.
        start: the schedule to beat.
        found: schedules that cost no more, most promising first.
    """
    best, best_psnrs = start, runs.psnrs(ReplayConfig(schedule=start))
    for schedule in found:
        psnrs = runs.psnrs(ReplayConfig(schedule=schedule))
        if is_better(psnrs - best_psnrs):
            best, best_psnrs = schedule, psnrs
    return best


def is_better(gains: Tensor) -> bool:
    """Whether paired gains [N] are positive on average, and more often than chance explains. Ties do not count."""
    won, lost = int((gains > 0).sum()), int((gains < 0).sum())
    counted = won + lost
    chance = sum(comb(counted, k) for k in range(won, counted + 1)) / 2**counted
    return bool(gains.mean() > 0) and chance <= CHANCE
