"""The cache scheduler with an error estimate that computes given ticks, and the threshold that stands for a speed-up."""

from collections.abc import Iterable

from diffcache.schedulers.error_control import ErrorControl
from diffcache.schedulers.moments import Axis
from diffcache.schedulers.steps import Step

HALF = 0.02
"""Threshold, as a fraction of the output, at which about half of the ticks are computed. Measured on the testbeds in 50 steps."""

STEEPNESS = 3
"""The threshold grows with this power of the mean distance between computed ticks. Measured as `HALF` was."""


class GivenTicks(ErrorControl):
    """Error control that computes these ticks. It only chooses by which order to reuse the others."""

    def __init__(self, ticks: Iterable[int], order: int, axis: Axis = "sigma") -> None:
        super().__init__(HALF, order, axis)
        self._ticks = frozenset(ticks)

    def distrusts(self, measured: float) -> bool:
        return False

    def may_compute(self, step: Step) -> bool:
        return step.tick in self._ticks

    def must_compute(self, step: Step) -> bool:
        return self.may_compute(step)


def threshold_for_speedup(speedup: float) -> float:
    """The threshold at which about one of `speedup` ticks is computed."""
    return HALF * (speedup / 2) ** STEEPNESS
