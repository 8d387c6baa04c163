"""Moments: when a feature was computed, and the axes on which distances between moments are measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Axis = Literal["sigma", "tick"]
"""What distances between moments are measured in: noise levels or ticks."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a feature was computed or is predicted: the tick, and its noise level where that is known."""

    tick: int
    sigma: float | None = None


def positions(points: Sequence[Moment], target: Moment, axis: Axis) -> tuple[list[float], float]:
    """Coordinates of the points and of the target on an axis.

    They are ticks if a noise level is unknown, or if two points have the same noise level.
    """
    sigmas = [point.sigma for point in points if point.sigma is not None]
    if axis == "sigma" and target.sigma is not None and len(set(sigmas)) == len(points):
        return sigmas, target.sigma
    return [float(point.tick) for point in points], float(target.tick)
