"""The cache scheduler with an error estimate: reuse while what it would cost stays below a threshold."""

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.moments import Axis, Moment
from diffcache.schedulers.steps import Decision, Step

GROWTH = 2
"""By what a gap may exceed the one before it, as in step-size control."""


class ErrorControl(CacheScheduler):
    """E <- E + min(e_hold, e_line) at each tick; reuse, by the better of the two, if and only if E < threshold.

    The step-size control of ODE solvers, turned around: the steps are given, and it is chosen which of them are worth an
    evaluation. At each computed tick the engine compares what holding, and a straight line through the last two features,
    would have given with what was computed. The remainder of interpolation of degree n is the (n+1)-th divided difference
    times prod_j (x - x_j) over the features that the polynomial runs through, so an error measured at one distance foretells
    the error at another:

        e(x) = e(x_c) * prod_j |x - x_j| / prod_j |x_c - x_j'|

    A computed tick sets E to 0. A gap is at most twice as long as the one before it, so that a straight stretch cannot blind
    it to a bend that follows. Both errors are fractions of the output (mean absolute values, the worst stream).

    Args:
        threshold: bound on E.
        axis: on which distances are taken.
    """

    adaptive = True
    compares = True

    def __init__(self, threshold: float, axis: Axis = "sigma") -> None:
        self.threshold = threshold
        self.axis: Axis = axis
        self.error = 0.0
        self._errors: Tensor | None = None
        self._points: list[Moment] = []

    def compared(self, past: Sequence[Moment], at: Moment, errors: Tensor) -> None:
        self._errors = errors
        self._points = [at, *past[:2]]

    def measure(self, latents: Sequence[Tensor]) -> Tensor | None:
        return self._errors

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        if signal is None:
            return Decision.COMPUTE
        line, hold = self._foreseen(signal, step.moment)
        if not step.repeats_sigma:
            self.error += min(line, hold)
        newest, before = self._points[:2]
        if not self.error < self.threshold or step.tick - newest.tick >= GROWTH * (newest.tick - before.tick):
            return Decision.COMPUTE
        return Decision.PREDICT if line <= hold else Decision.HOLD

    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self.error = 0.0

    def held(self) -> Iterator[Tensor]:
        if self._errors is not None:
            yield self._errors

    def _foreseen(self, errors: Sequence[float], target: Moment) -> tuple[float, float]:
        """Errors of the line and of holding at `target`; infinite for a line that has not been seen yet."""
        x, (c, p, *before) = self._positions(target)
        hold = errors[1] * abs(x - c) / abs(c - p)
        if not before:
            return math.inf, hold
        return errors[0] * abs((x - c) * (x - p)) / abs((c - p) * (c - before[0])), hold

    def _positions(self, target: Moment) -> tuple[float, list[float]]:
        """Of `target`, and of the newest computed ticks; ticks where noise levels are unknown or repeat."""
        sigmas = [point.sigma for point in self._points if point.sigma is not None]
        if self.axis == "sigma" and target.sigma is not None and len(set(sigmas)) == len(self._points):
            return target.sigma, sigmas
        return target.tick, [float(point.tick) for point in self._points]
