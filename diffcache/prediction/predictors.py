"""Predictors: the weights with which stored features add up to the value of a reused tick."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.moments import Axis, Moment, positions
from diffcache.schedulers.steps import Decision


class Predictor(ABC):
    """A linear rule: value = sum_j weights[j] * feature[j], newest feature first."""

    depth: int
    """How many past features it looks at when it has them."""

    axis: Axis = "tick"
    """What a line beside it is drawn over."""

    def serving(self, decision: Decision) -> "Predictor":
        """What serves a reuse: itself, or one of lower order."""
        match decision:
            case Decision.HOLD:
                return Hold()
            case Decision.LINE:
                return Polynomial(1, self.axis)
            case _:
                return self

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
        if len(past) == 1:
            return [1.0]
        at, x = positions(past, target, self.axis)
        weights = []
        for j, x_j in enumerate(at):
            weight = 1.0
            for m, x_m in enumerate(at):
                if m != j:
                    weight *= (x - x_m) / (x_j - x_m)
            weights.append(weight)
        return weights


class Taylor(Predictor):
    """TaylorSeer's expansion (arXiv 2503.06923): sum_i F_i d^i / i!, d ticks after the newest feature.

    F_0 is the newest feature, and F_{i+1} the difference of the two newest F_i over the ticks between them. Up to order
    1, and on even distances, that is the polynomial through the features; beyond it is not.

    Args:
        order: of the expansion.
        first: features of earlier ticks are left out: published code takes differences from there on.
    """

    def __init__(self, order: int, first: int = 0) -> None:
        self.depth = order + 1
        self.first = first

    def describe(self) -> dict[str, Any]:
        return {"name": "taylor", "order": self.depth - 1, "first": self.first}

    def weights(self, past: Sequence[Moment], target: Moment) -> list[float]:
        used = [moment for i, moment in enumerate(past) if i == 0 or moment.tick >= self.first]
        ahead, scale = target.tick - past[0].tick, 1.0
        factors = [[float(i == j) for i in range(len(past))] for j in range(len(used))]
        total = factors[0]
        for i in range(1, len(used)):
            spans = [used[j].tick - used[j + 1].tick for j in range(len(factors) - 1)]
            factors = [
                [(new - old) / span for new, old in zip(factors[j], factors[j + 1], strict=True)]
                for j, span in enumerate(spans)
            ]
            scale *= ahead / i
            total = [sum_ + scale * weight for sum_, weight in zip(total, factors[0], strict=True)]
        return total


class Lerp(Predictor):
    """FasterCache's attention (arXiv 2410.19355): F + weight * (F - the feature before F)."""

    depth = 2

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def describe(self) -> dict[str, Any]:
        return {"name": "lerp", "weight": self.weight}

    def weights(self, past: Sequence[Moment], target: Moment) -> list[float]:
        return [1.0] if len(past) == 1 else [1 + self.weight, -self.weight]


class Scaled(Predictor):
    """The newest feature, scaled by how its magnitude is known to change from tick to tick.

    Args:
        ratios: of each tick's magnitude to that of the tick before.
    """

    depth = 1

    def __init__(self, ratios: Sequence[float]) -> None:
        self.ratios = list(ratios)

    def describe(self) -> dict[str, Any]:
        return {"name": "scaled", "ratios": self.ratios}

    def weights(self, past: Sequence[Moment], target: Moment) -> list[float]:
        return [math.prod(self.ratios[past[0].tick + 1 : target.tick + 1])]


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
        case {"name": "taylor", "order": int(order), "first": int(first)} if order >= 0:
            return Taylor(order, first)
        case {"name": "lerp", "weight": int() | float() as weight}:
            return Lerp(weight)
        case {"name": "scaled", "ratios": list(ratios)} if all(isinstance(r, (int, float)) for r in ratios):
            return Scaled(ratios)
    raise ScheduleError(f"predictor: {dict(description)} is none that this version knows.")
