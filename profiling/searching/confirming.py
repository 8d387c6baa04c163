"""Confirming: what was found on some samples replaces what it began with only if it is better on samples that no search saw.

The best of many candidates on few samples is partly the luckiest. On fresh samples luck does not repeat.
"""

from collections.abc import Iterable
from math import comb

from torch import Tensor

from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.schedule import Schedule

CHANCE = 0.05
"""That as many samples would be better if neither schedule were."""
FEWEST = 5
"""Samples: that fewer are all better is no less likely by chance."""


def confirmed(runs: FullRuns, begun: Schedule, found: Iterable[Schedule]) -> Schedule:
    """The schedule that a search began with, or what beats it on these samples.

    One after the other, each schedule replaces the one that stands if its PSNR is higher on average, and on more samples
    than chance explains (sign test, one-sided, `CHANCE`).

    Args:
        runs: full runs of samples that the search did not see.
        begun: what stands if nothing beats it.
        found: as cheap as that, most promising first.
    """
    best, standing = begun, runs.psnrs(ReplayConfig(schedule=begun))
    for schedule in found:
        rival = runs.psnrs(ReplayConfig(schedule=schedule))
        if is_better(rival - standing):
            best, standing = schedule, rival
    return best


def is_better(gains: Tensor) -> bool:
    """Whether paired gains [N] are positive on average, and more often than chance explains; ties count for neither."""
    won, lost = int((gains > 0).sum()), int((gains < 0).sum())
    played = won + lost
    at_least = sum(comb(played, k) for k in range(won, played + 1)) / 2**played
    return bool(gains.mean() > 0) and at_least <= CHANCE
