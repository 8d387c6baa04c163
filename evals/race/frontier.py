"""Frontiers: which settings of a contender are chosen for a budget, and what they give at exactly the budget's compute.

A budget lies between two settings, one that computes less and one that computes more. Using the one for a share of the samples and
the other for the rest computes exactly what the budget allows; the quality of the mixture is the mean of both, weighed by the
shares. All contenders are treated alike. No mixture with the full run is made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from diffcache.evals.race.row import Row

WIDEST = 0.12
"""How far from the budget the compute of a setting may be."""
SLACK = 0.005
"""Share of the full run's compute by which a setting may be above a budget and count as within it."""
CLOSE = 2.0
"""How far below the best, in dB on a few samples, a setting may be that is the best on more."""

Figure = Callable[[Row], Sequence[float]]
"""A row's value for each sample."""


@dataclass(frozen=True)
class Pair:
    """Two settings around a budget, or twice the same.

    Attributes:
        low, high: the settings, `low` computes less.
    """

    low: Row
    high: Row

    def share(self, compute: float) -> float:
        """Of the samples that are drawn with `high`, so that this is computed on the whole."""
        width = self.high.compute - self.low.compute
        return float(np.clip((compute - self.low.compute) / width, 0, 1)) if width > 0 else 0.0

    def compute(self, compute: float) -> float:
        """What is really computed: less, where no setting computes more."""
        share = self.share(compute)
        return (1 - share) * self.low.compute + share * self.high.compute

    def values(self, compute: float, figure: Figure) -> NDArray[np.float64]:
        """The figure of the mixture for each sample."""
        share = self.share(compute)
        low, high = (np.array(figure(row)) for row in (self.low, self.high))
        mixed: NDArray[np.float64] = (1 - share) * low + share * high
        return mixed

    def mean(self, compute: float, figure: Figure) -> float:
        return float(self.values(compute, figure).mean())


def pair_for(rows: Sequence[Row], compute: float, figure: Figure) -> Pair | None:
    """The best pair of settings for a share of the full run's compute; None where none computes as little."""
    near = [row for row in rows if abs(row.compute - compute) <= WIDEST]
    lows = [row for row in near if row.compute <= compute + SLACK]
    highs = [row for row in near if row.compute > compute + SLACK]
    pairs = [*(Pair(row, row) for row in lows), *(Pair(*both) for both in product(lows, highs))]
    return max(pairs, key=lambda pair: pair.mean(compute, figure), default=None)


def nearest_below(rows: Sequence[Row], compute: float) -> Pair | None:
    """The setting that computes most within a share of the full run's compute, as a pair; None where none is within it."""
    below = [row for row in rows if row.compute <= compute + SLACK]
    row = max(below, key=lambda row: row.compute, default=None)
    return None if row is None else Pair(row, row)


def best_below(rows: Sequence[Row], compute: float) -> Row | None:
    """The setting with the best mean PSNR within a share of the full run's compute; None where none is within it."""
    below = (row for row in rows if row.compute <= compute + SLACK)
    return max(below, key=lambda row: row.mean_psnr, default=None)


def worth_choosing(rows: Sequence[Row], compute: float, figure: Figure) -> list[Row]:
    """Settings that may be the best for a share of the compute: the best pair, and the best pair without these."""
    first = pair_for(rows, compute, figure)
    if first is None:
        return []
    found = [first.low, first.high]
    second = pair_for([row for row in rows if row is not first.low], compute, figure)
    if second is None or second.mean(compute, figure) < first.mean(compute, figure) - CLOSE:
        return found
    return [*found, second.low]
