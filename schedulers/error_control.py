"""The cache scheduler with an error estimate: it reuses while the expected error stays below a threshold."""

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.moments import Axis, Moment, positions
from diffcache.schedulers.steps import Decision, Step

GROWTH = 2
"""Longest gap between computed ticks over the gap before it. Step-size control of ODE solvers bounds growth likewise."""


STOP = 3
"""A measured error of more than this many thresholds is followed by a computed tick, however small the next expected error is."""

OFF = "the error measured at the last computed tick was several times the threshold"


class ErrorControl(CacheScheduler):
    """E <- E + min_n e_n at each tick; reuse with the order n of least expected error if and only if E < threshold.

    ODE solvers control step size and order. Here the steps are given, and the question is which of them deserve an evaluation.
    At each computed tick the engine predicts the output with polynomials of degree n through the newest n + 1 features,
    and compares them with what was computed. A polynomial through points x_j errs at x by a divided difference times
    prod_j (x - x_j). So an error that was measured at one distance gives the expected error at another:

        e_n(x) = e_n(x_c) * prod_j |x - x_j| / prod_j |x_c - x_j'|

    A computed tick sets E to 0. A gap is at most twice as long as the one before it, so that a straight stretch cannot hide
    a bend that follows. After an error of several times the threshold the next tick is computed. Errors are fractions of the
    output, or of the velocity where that is stored: mean absolute values, of the worst stream.

    Args:
        threshold: bound on E.
        order: of the predictor. A straight line and holding are compared with it where their order is lower.
        axis: where distances are measured.
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
            return Decision.COMPUTE if self.may_compute(step) else Decision.HOLD
        self.reason, expected = None, self._expected_errors(signal, step.moment)
        best = min(expected, key=expected.__getitem__)
        if not step.repeats_sigma:
            self.error += expected[best]
        if self.must_compute(step):
            return Decision.COMPUTE
        if self.distrusts(min(signal)):
            self.reason = OFF
            return Decision.COMPUTE
        return best

    def distrusts(self, measured: float) -> bool:
        """Whether the least error that was measured at the last computed tick forbids to reuse the next one."""
        return measured > STOP * self.threshold > 0

    def may_compute(self, step: Step) -> bool:
        """Whether this tick may be computed at all."""
        return True

    def must_compute(self, step: Step) -> bool:
        """Whether reusing this tick would exceed the threshold, or make the gap too long."""
        too_long = step.tick - self._last_computed >= self.longest_gap(step)
        return not self.error < self.threshold or too_long  # NaN computes

    def longest_gap(self, step: Step) -> float:
        """How many ticks after the last computed one the next one comes at the latest."""
        newest, before = self._points[:2]
        return GROWTH * (newest.tick - before.tick)

    @property
    def _last_computed(self) -> int:
        """The last computed tick."""
        return self._points[0].tick if self._points else 0

    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self.error = 0.0

    def held(self) -> Iterator[Tensor]:
        if self._errors is not None:
            yield self._errors

    def _expected_errors(self, errors: Sequence[float], target: Moment) -> dict[Decision, float]:
        """Of each kind of reuse at `target`; infinite where too few features are stored to have measured one."""
        points, x = positions(self._points, target, self.axis)
        return {
            kind: error * _distances(x, points[: n + 1]) / _distances(points[0], points[1 : n + 2])
            if len(points) > n + 1
            else math.inf
            for (kind, n), error in zip(self._orders.items(), errors, strict=True)
        }


def _distances(x: float, points: Sequence[float]) -> float:
    """prod_j |x - x_j|."""
    return math.prod(abs(x - point) for point in points)
