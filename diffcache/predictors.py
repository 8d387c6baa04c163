"""Predictors: the weights with which stored features add up to the value of a reused tick."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from diffcache.schedulers.errors import ScheduleError

Axis = Literal["sigma", "tick"]


@dataclass(frozen=True, slots=True)
class Moment:
    """When a feature was, or is to be, computed: its tick and its noise level."""

    tick: int
    sigma: float | None = None


class Predictor(ABC):
    """A linear rule: value = sum_j weights[j] * feature[j], newest feature first."""

    depth: int
    """How many past features it looks at when it has them."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Name and parameters, as `predictor_from` reads them."""

    @abstractmethod
    def weights(self, past: Sequence[Moment], target: Moment) -> list[float]:
        """One weight for each of the `past` moments (newest first, at least one, at most `depth`)."""


class Hold(Predictor):
    """The newest feature, unchanged."""

    depth = 1

    def describe(self) -> dict[str, Any]:
        return {"name": "hold"}

    def weights(self, past: Sequence[Moment], target: Moment) -> list[float]:
        return [1.0]


class Polynomial(Predictor):
    """The polynomial through the newest `order + 1` features (Lagrange form), of lower order while fewer exist.

    Args:
        order: degree; 0 holds, 1 extrapolates linearly, 2 quadratically.
        axis: what it is a polynomial in: the noise level, or the tick where noise levels are unknown or repeat.
    """

    def __init__(self, order: int, axis: Axis = "sigma") -> None:
        self.depth = order + 1
        self.axis = axis

    def describe(self) -> dict[str, Any]:
        return {"name": "polynomial", "order": self.depth - 1, "axis": self.axis}

    def weights(self, past: Sequence[Moment], target: Moment) -> list[float]:
        at, x = self._positions(past, target)
        weights = []
        for j, x_j in enumerate(at):
            weight = 1.0
            for m, x_m in enumerate(at):
                if m != j:
                    weight *= (x - x_m) / (x_j - x_m)
            weights.append(weight)
        return weights

    def _positions(self, past: Sequence[Moment], target: Moment) -> tuple[list[float], float]:
        sigmas = [moment.sigma for moment in past if moment.sigma is not None]
        if self.axis == "sigma" and target.sigma is not None and len(set(sigmas)) == len(past):
            return sigmas, target.sigma
        return [float(moment.tick) for moment in past], float(target.tick)


def predictor_from(description: Mapping[str, Any]) -> Predictor:
    """The predictor that `describe` described.

    Raises:
        ScheduleError: it is of no known kind.
    """
    match description:
        case {"name": "hold"}:
            return Hold()
        case {"name": "polynomial", "order": int(order), "axis": "sigma" | "tick" as axis} if order >= 0:
            return Polynomial(order, axis)
    raise ScheduleError(f"predictor: {dict(description)} is none that this version knows.")
