"""Predictors: the value of a reused tick is a weighted sum of stored features; a predictor gives the weights."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from diffcache.schedulers.moments import Axis, Moment, positions
from diffcache.schedulers.steps import Decision
from diffcache.trajectory.error_model import WINDOW
from diffcache.trajectory.gaussian import BETWEEN, conditional_weights
from diffcache.trajectory.kernel import Array
from diffcache.trajectory.process import MODELLED
from diffcache.trajectory.transfer import Measurement

DEGREE = 2
"""Degree of hindsight's curve through computed features. Degree 1 corrects less, and degree 3 follows noise."""


class Predictor(ABC):
    """Predicts sum_j weights[j] * feature[j], newest feature first.

    Attributes:
        depth: the largest number of past features that it uses.
        axis: what lines and curves are functions of (see `Axis`).
        doubted: corrections by this curve shrink where they are surprisingly large. Where noise is part of the model its weights
            are small already.
    """

    depth: int
    axis: Axis = "tick"
    doubted: bool = True

    @property
    def curve(self) -> "Predictor":
        """What hindsight draws through computed ticks, the newest of which comes after the wanted one."""
        return Polynomial(DEGREE, self.axis)

    def serving(self, decision: Decision) -> "Predictor":
        """The predictor for a decision to reuse: this one, or one of lower order (see `Decision`)."""
        match decision:
            case Decision.HOLD:
                return Hold()
            case Decision.LINE:
                return Polynomial(1, self.axis)
            case _:
                return self

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Name and parameters, from which `descriptions.predictor_from` makes an equal predictor."""

    @abstractmethod
    def weights(self, past: Sequence[Moment], target: Moment) -> list[float]:
        """One weight for each feature.

        Args:
            past: moments of the features, newest first; at least one, at most `depth`.
            target: the moment to predict.
        """


class Hold(Predictor):
    """The newest feature, unchanged."""

    depth = 1

    def describe(self) -> dict[str, Any]:
        return {"name": "hold"}

    def weights(self, past: Sequence[Moment], target: Moment) -> list[float]:
        return [1.0]


class Polynomial(Predictor):
    """The polynomial through the newest `order + 1` features (Lagrange form); of lower order while there are fewer.

    Args:
        order: its degree: 0 holds the newest feature, 1 extrapolates linearly, 2 quadratically.
        axis: what it is a polynomial in; the tick where noise levels are unknown or repeat.
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

    F_0 is the newest feature. F_{i+1} is the difference of the two newest F_i, over the number of ticks between them. Up
    to order 1 this is the polynomial in the tick through the features; at higher orders it is not.

    Args:
        order: the highest i.
        first: features of ticks before this one are not used, except the newest: published code takes differences only
            from there on.
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


class Chebyshev(Predictor):
    """Spectrum's forecast (arXiv 2603.01623): a ridge regression of all features on Chebyshev polynomials of the tick.

    With the polynomials Phi at the features' ticks and phi at the target, weights are phi^T (Phi^T Phi + ridge I)^-1 Phi^T,
    mixed with those of the line through the two newest features.

    Args:
        depth: how many features it uses.
        length: ticks from -1 to 1 on the polynomials' axis.
        degree: of the highest polynomial.
        ridge: lambda.
        mixture: share of the regression; 0 is the line alone.
    """

    def __init__(self, depth: int, length: int, degree: int, ridge: float, mixture: float) -> None:
        self.depth = depth
        self.length = length
        self.degree = degree
        self.ridge = ridge
        self.mixture = mixture

    def describe(self) -> dict[str, Any]:
        return {"name": "chebyshev", **vars(self)}

    def weights(self, past: Sequence[Moment], target: Moment) -> list[float]:
        at = 2 * np.array([target.tick, *(moment.tick for moment in past)]) / self.length - 1
        basis = np.polynomial.chebyshev.chebvander(at, self.degree)
        wanted, known = basis[0], basis[1:]
        penalty = self.ridge * np.eye(self.degree + 1)
        forecast = wanted @ np.linalg.lstsq(known.T @ known + penalty, known.T, rcond=None)[0]
        line = np.zeros(len(past))
        newest = Polynomial(1, "tick").weights(past[:2], target)
        line[: len(newest)] = newest
        mixed: list[float] = (self.mixture * forecast + (1 - self.mixture) * line).tolist()
        return mixed


class Conditional(Predictor):
    """The conditional mean of a Gaussian process (`diffcache.trajectory`), given the newest features.

    Args:
        believed: covariance of the outputs at all ticks of the run that predictions count with, [ticks, ticks]; a rougher one makes them careful.
        noise: see `conditional_weights`.
        window: how many features it uses.
        covariance: of the outputs, [ticks, ticks], with which ticks between computed ones are corrected; None: the same.
        measured: where `covariance` was measured, and what else was: schedules carry it to other runs. None: it was not measured.
    """

    doubted = False

    def __init__(
        self,
        believed: Array,
        noise: float,
        window: int = WINDOW,
        covariance: Array | None = None,
        measured: Measurement | None = None,
    ) -> None:
        self.believed = believed
        self.noise = noise
        self.depth = window
        self.covariance = believed if covariance is None else covariance
        self.measured = measured

    @property
    def curve(self) -> "Predictor":
        return Conditional(self.covariance, BETWEEN, self.depth + 1)

    def describe(self) -> dict[str, Any]:
        return {
            "name": "conditional",
            "of": MODELLED,
            "covariance": self.believed.tolist(),
            "between": self.covariance.tolist(),
            "noise": self.noise,
            "window": self.depth,
            **({} if self.measured is None else self.measured.describe()),
        }

    def weights(self, past: Sequence[Moment], target: Moment) -> list[float]:
        known = [moment.tick for moment in past]
        if max(target.tick, *known) >= len(self.believed):  # the run is longer than was expected
            return [1.0] + [0.0] * (len(past) - 1)
        weights = conditional_weights(self.believed, known, [target.tick], self.noise)
        return [float(weight) for weight in weights[:, 0]]

    def expected_error(self, past: Sequence[int], target: int) -> float:
        """Root mean square error of a prediction, as a fraction of all outputs'.

        Args:
            past: ticks of the features, newest first.
            target: the tick to predict.
        """
        weights = conditional_weights(self.believed, past, [target], self.noise)[:, 0]
        ticks, signed = [*past, target], np.append(weights, -1.0)
        variance = signed @ self.believed[np.ix_(ticks, ticks)] @ signed
        return math.sqrt(max(variance, 0.0) / self.believed.diagonal().mean())


class Lerp(Predictor):
    """FasterCache's rule for attentions (arXiv 2410.19355): F + weight * (F - G), where G is the feature before F.

    Args:
        weight: 0 holds F, 1 goes on in a straight line.
    """

    depth = 2

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def describe(self) -> dict[str, Any]:
        return {"name": "lerp", "weight": self.weight}

    def weights(self, past: Sequence[Moment], target: Moment) -> list[float]:
        return [1.0] if len(past) == 1 else [1 + self.weight, -self.weight]


class Scaled(Predictor):
    """The newest feature, scaled by a known change of magnitude from tick to tick.

    Args:
        ratios: for each tick, its feature's magnitude over that of the tick before.
    """

    depth = 1

    def __init__(self, ratios: Sequence[float]) -> None:
        self.ratios = list(ratios)

    def describe(self) -> dict[str, Any]:
        return {"name": "scaled", "ratios": self.ratios}

    def weights(self, past: Sequence[Moment], target: Moment) -> list[float]:
        return [math.prod(self.ratios[past[0].tick + 1 : target.tick + 1])]
