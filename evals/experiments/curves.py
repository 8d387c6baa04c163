"""Factors that were measured along runs of several testbeds, and their average by noise level and by the strength of guidance."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from diffcache.trajectory.by_noise_level import ByNoiseLevel
from diffcache.trajectory.kernel import RIGHT_ANGLE, Array
from diffcache.trajectory.response import Response, UniversalResponse

KNOTS = 17
"""Angles at which an average is given."""


class Curve(NamedTuple):
    """What was measured in one run.

    Attributes:
        strength: of guidance (see `diffcache.schedulers.guidance.Guidance`); 1 for none.
        angles: of some ticks, in radians.
        factors: there.
    """

    strength: float
    angles: Sequence[float]
    factors: Sequence[float]


class Answered(NamedTuple):
    """The response that was measured in one run.

    Attributes:
        strength: of guidance; 1 for none.
        angles: of its ticks, in radians.
        response: there.
    """

    strength: float
    angles: Sequence[float]
    response: Response


def averaged(testbeds: Collection[Sequence[Curve]]) -> ByNoiseLevel:
    """The geometric mean over testbeds of how a factor changes with the angle, at their median height.

    Testbeds differ in height since errors are those of pictures, and some decode their latents. Exponents of the strength are
    fitted to the differences between one testbed's runs.

    Args:
        testbeds: the runs of each; one without runs has no vote.
    """
    angles = np.linspace(0, RIGHT_ANGLE, KNOTS)
    found = [_Logs.of(curves, angles) for curves in testbeds if curves]
    covariance = np.sum([logs.covariance for logs in found], axis=0)
    exponents = covariance / max(sum(logs.variance for logs in found), np.finfo(float).tiny)
    plain = np.array([logs.mean - logs.strength * exponents for logs in found])
    heights = plain.mean(axis=1, keepdims=True)
    factors = np.exp((plain - heights).mean(axis=0) + np.median(heights))
    rounded = (tuple(values.round(4).tolist()) for values in (angles, factors, exponents))
    return ByNoiseLevel(*rounded)


def averaged_response(testbeds: Collection[Sequence[Answered]]) -> UniversalResponse:
    """The median over testbeds of a response without guidance, how far their means differ, and what a larger strength of guidance adds.

    Slopes are fitted to the differences between one testbed's runs.

    Args:
        testbeds: the runs of each.
    """
    angles = np.linspace(0, RIGHT_ANGLE, KNOTS)
    runs = [
        (np.array([run.strength - 1 for run in of]), np.array([_parts(run, angles) for run in of]))
        for of in testbeds
    ]
    together = sum(np.tensordot(above - above.mean(), parts, 1) for above, parts in runs)
    slopes = together / max(sum(above.var() * len(above) for above, _ in runs), np.finfo(float).tiny)
    plain = np.array([(parts - above[:, None, None] * slopes).mean(axis=0) for above, parts in runs])
    factors, deviations = np.median(plain, axis=0), plain[:, 0].std(axis=0)
    at_angles, of_means = (tuple(found.round(4).tolist()) for found in (angles, deviations))
    usual, added = (tuple(map(tuple, found.round(4).tolist())) for found in (factors, slopes))
    return UniversalResponse(at_angles, usual, added, of_means)


def _parts(run: Answered, angles: Array) -> Array:
    """A run's response at other angles, [2, angles]."""
    order = np.argsort(run.angles)
    at = np.array(run.angles)[order]
    return np.stack([np.interp(angles, at, part[order]) for part in run.response.factors])


class _Logs(NamedTuple):
    """Logarithms of a testbed's factors and of its strengths of guidance, over its runs.

    Attributes:
        mean: of the factors, [angles].
        strength: the mean of these.
        covariance: of both, summed over runs, [angles].
        variance: of the logarithms of the strengths, likewise.
    """

    mean: Array
    strength: float
    covariance: Array
    variance: float

    @classmethod
    def of(cls, curves: Sequence[Curve], angles: Array) -> "_Logs":
        logs = np.array([_interpolated(curve, angles) for curve in curves])
        strengths = np.log([curve.strength for curve in curves])
        apart = strengths - strengths.mean()
        return cls(logs.mean(axis=0), strengths.mean(), apart @ logs, apart @ apart)


def _interpolated(curve: Curve, angles: Array) -> Array:
    """The logarithm of a run's factor at other angles."""
    order = np.argsort(curve.angles)
    found: Array = np.interp(angles, np.array(curve.angles)[order], np.log(curve.factors)[order])
    return found
