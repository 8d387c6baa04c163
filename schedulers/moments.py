"""When features were computed, and how far apart those times are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Axis = Literal["sigma", "tick"]


@dataclass(frozen=True, slots=True)
class Moment:
    """When a feature was, or is to be, computed: its tick and its noise level."""

    tick: int
    sigma: float | None = None


def positions(past: Sequence[Moment], target: Moment, axis: Axis = "sigma") -> tuple[list[float], float]:
    """Where moments stand on an axis: the noise level, or the tick where noise levels are unknown or repeat."""
    sigmas = [moment.sigma for moment in past if moment.sigma is not None]
    if axis == "sigma" and target.sigma is not None and len(set(sigmas)) == len(past):
        return sigmas, target.sigma
    return [float(moment.tick) for moment in past], float(target.tick)
