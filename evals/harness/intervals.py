"""Bootstrap intervals of 95 %: of a mean over samples, and of medians over rounds and testbeds."""

import random
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import ArrayLike

SHARE = 0.95
ENDS = (1 - SHARE) / 2, (1 + SHARE) / 2
"""Of an interval, as quantiles."""

RESAMPLES = 4000
RESAMPLES_OF_MEDIANS = 2000


def mean_with_interval(values: ArrayLike) -> tuple[float, float, float]:
    """A mean over samples [N], and the ends of its interval; for paired samples give their differences."""
    array = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(0).integers(len(array), size=(RESAMPLES, len(array)))
    low, high = np.quantile(array[drawn].mean(1), ENDS)
    return float(array.mean()), float(low), float(high)


def interval_of_median(values: Sequence[float]) -> list[float]:
    """The ends of a median's interval."""
    drawn = random.Random(1)
    resampled = sorted(median(drawn.choices(values, k=len(values))) for _ in range(RESAMPLES_OF_MEDIANS))
    beyond = RESAMPLES_OF_MEDIANS // 40
    return [resampled[beyond], resampled[-beyond - 1]]


def interval_of_gain(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[float, float]:
    """The interval of a median over testbeds: of how much the median of one contender's samples is above that of another's.

    In each testbed both are drawn anew from the same samples.

    Args:
        pairs: of each testbed what both measure on its samples, [samples] each.
    """
    numbers, gains = np.random.default_rng(0), []
    for ones, others in pairs:
        drawn = numbers.integers(len(ones), size=(RESAMPLES, len(ones)))
        medians = (np.median(np.asarray(each, dtype=float)[drawn], axis=1) for each in (ones, others))
        gains.append(np.subtract(*medians))
    low, high = np.quantile(np.median(gains, axis=0), ENDS)
    return float(low), float(high)
