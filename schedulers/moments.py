"""When features were computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Axis = Literal["sigma", "tick"]


@dataclass(frozen=True, slots=True)
class Moment:
    """When a feature was, or is to be, computed: its tick and its noise level."""

    tick: int
    sigma: float | None = None


def positions(points: Sequence[Moment], target: Moment, axis: Axis) -> tuple[list[float], float]:
    """Of the points and of the target on an axis; ticks where noise levels are unknown or repeat among the points."""
    sigmas = [point.sigma for point in points if point.sigma is not None]
    if axis == "sigma" and target.sigma is not None and len(set(sigmas)) == len(points):
        return sigmas, target.sigma
    return [float(point.tick) for point in points], float(target.tick)
