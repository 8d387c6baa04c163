"""The cache scheduler with an error estimate: reuse while what it would cost stays below a threshold."""

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.moments import Axis, Moment, positions
from diffcache.schedulers.steps import Decision, Step

GROWTH = 2
"""By what a gap may exceed the one before it, as in step-size control."""


class ErrorControl(CacheScheduler):
    """E <- E + min_n e_n at each tick; reuse, by the order n that is expected to be best, if and only if E < threshold.

    The control of step size and order in ODE solvers, turned around: the steps are given, and it is chosen which of them
    are worth an evaluation. At each computed tick the engine compares what polynomials of degree n through the newest n + 1
    features would have given with what was computed. The remainder of interpolation of degree n is the (n+1)-th divided
    difference times prod_j (x - x_j) over those features, so an error measured at one distance foretells the error at
    another:

        e_n(x) = e_n(x_c) * prod_j |x - x_j| / prod_j |x_c - x_j'|

    A computed tick sets E to 0. A gap is at most twice as long as the one before it, so that a straight stretch cannot blind
    it to a bend that follows. Errors are fractions of the output (mean absolute values, the worst stream).

    Args:
        threshold: bound on E.
        order: of the predictor; the straight line and holding are weighed against it where they are of lower order.
        axis: on which distances are taken.
    """

    adaptive = True

    def __init__(self, threshold: float, order: int = 1, axis: Axis = "sigma") -> None:
        self.threshold = threshold
        self.axis: Axis = axis
        self.error = 0.0
        lower = {kind: n for kind, n in {Decision.LINE: 1, Decision.HOLD: 0}.items() if n < order}
        self._orders = {Decision.PREDICT: order} | lower
        self.compares = tuple(self._orders)
        self._errors: Tensor | None = None
        self._points: list[Moment] = []

    def compared(self, past: Sequence[Moment], at: Moment, errors: Tensor) -> None:
        self._errors = errors
        self._points = [at, *past]

    def measure(self, latents: Sequence[Tensor]) -> Tensor | None:
        return self._errors

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        if signal is None:
            return Decision.COMPUTE if self.affords(step) else Decision.HOLD
        foreseen = self._foreseen(signal, step.moment)
        best = min(foreseen, key=foreseen.__getitem__)
        if not step.repeats_sigma:
            self.error += foreseen[best] * self.weight(step)
        return Decision.COMPUTE if self.due(step) else best

    def weight(self, step: Step) -> float:
        """How much an error at this tick matters."""
        return 1.0

    def affords(self, step: Step) -> bool:
        """Whether this tick may be computed at all."""
        return True

    def due(self, step: Step) -> bool:
        """Whether reusing this tick would cost too much, or make the gap too long."""
        return not self.error < self.threshold or step.tick - self._last >= self.longest(step)

    def longest(self, step: Step) -> float:
        """How far from the last computed tick the next one may be."""
        newest, before = self._points[:2]
        return GROWTH * (newest.tick - before.tick)

    @property
    def _last(self) -> int:
        """The last computed tick."""
        return self._points[0].tick if self._points else 0

    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self.error = 0.0

    def held(self) -> Iterator[Tensor]:
        if self._errors is not None:
            yield self._errors

    def _foreseen(self, errors: Sequence[float], target: Moment) -> dict[Decision, float]:
        """The error of each kind of reuse at `target`; infinite where it has not been seen with all its features."""
        points, x = positions(self._points, target, self.axis)
        return {
            kind: error * _remainder(x, points[: n + 1]) / _remainder(points[0], points[1 : n + 2])
            if len(points) > n + 1
            else math.inf
            for (kind, n), error in zip(self._orders.items(), errors, strict=True)
        }


def _remainder(x: float, points: Sequence[float]) -> float:
    """prod_j |x - x_j|."""
    return math.prod(abs(x - point) for point in points)
