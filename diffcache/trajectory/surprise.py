"""Surprises: by how much a run's predictions err more or less than usual, and what that foretells of its later ticks."""

from collections.abc import Sequence

import numpy as np

from diffcache.trajectory.gaussian import conditional_weights
from diffcache.trajectory.kernel import Array

RANGE = 0.4
"""Angle in radians over which the correlation of surprises falls to 1 / e."""

NOISE = 0.13
"""Variance of one measurement, as a fraction of that of surprises among denoisers."""

SHARED = 0.7
"""This share of a surprise is expected again at later ticks. The rest comes from the very ticks that predicted, and from errors that the run has made."""


def foreseen(angles: Sequence[float], ticks: Sequence[int], surprises: Sequence[float]) -> Array:
    """By how much errors are larger than usual at each tick of a run, from those that were measured: a factor, [ticks].

    The logarithm is a Gaussian process over the angle, an Ornstein-Uhlenbeck process (Rasmussen and Williams 2006, section
    4.2.1): denoisers that are smoother than others at one noise level are so at those near it.

    Args:
        angles: atan2(noise, signal) of all ticks of the run, in radians.
        ticks: at which errors were measured.
        surprises: logarithms of measured over usual errors there.
    """
    correlation = np.exp(-np.abs(np.subtract.outer(angles, angles)) / RANGE)
    weights = conditional_weights(correlation, ticks, range(len(angles)), NOISE)
    factors: Array = np.exp(SHARED * (np.array(surprises) @ weights))
    return factors
