"""The cache scheduler with an error estimate and a budget: so many computed ticks, where they are expected to matter most."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from diffcache.schedulers.error_control import ErrorControl
from diffcache.schedulers.moments import Axis
from diffcache.schedulers.steps import Decision, Step

HALF = 0.02
"""The threshold at which half of the ticks are computed, about, on the testbeds in 50 steps."""

STEEPNESS = 3
"""And the power of how sparse computed ticks are to be with which it grows there."""

RESERVE = 0.8
"""Of the even density, what a stretch that bends must leave to the ticks after it; all of it, where errors matter less than
on average."""


class Allowance(ErrorControl):
    """Error control that computes `count` of `num_ticks` ticks, with a threshold that follows from what is left:

        threshold = HALF * (ticks left / (2 * computed ticks left))^STEEPNESS

    When nothing is left, the rest is reused; when as much is left as there are ticks, they are computed. Errors are weighed by
    how much they matter (`Step.weight`). Ticks are spent early, within `RESERVE`, and never saved: what is expected of a gap is
    the less reliable the longer it is, so none is longer than even ones of what is left would be.

    Args:
        num_ticks: of the run.
        count: ticks that may be computed, those that guards force included.
        tail: ticks at the end that guards force.
        order, axis: as for error control.
    """

    def __init__(self, num_ticks: int, count: int, tail: int, order: int, axis: Axis = "sigma") -> None:
        super().__init__(HALF, order, axis)
        self._end = num_ticks - tail
        self._left = count - tail
        self._even = self._end / max(self._left, 1)

    def affords(self, step: Step) -> bool:
        return self._left > 0

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        if signal is None:  # one tick is computed: nothing says yet how to go on
            return Decision.COMPUTE if self.due(step) else Decision.HOLD
        return super().decide(step, signal)

    def due(self, step: Step) -> bool:
        if not self.affords(step) or self._left >= self._end - step.tick:
            return self.affords(step)
        sparseness = (self._end - step.tick) / self._left
        self.threshold = threshold_of(sparseness)
        waited = step.tick - self._last
        reserve = RESERVE if step.weight >= 1 else 1.0
        return super().due(step) and (sparseness * reserve <= self._even or waited >= sparseness)

    def weight(self, step: Step) -> float:
        return step.weight

    def longest(self, step: Step) -> float:
        """As even ones would be, to a tick, of what was left after the last computed tick; two in any case."""
        return max(round((self._end - self._last) / (self._left + 1)), 2)

    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        super().computed(latents, outputs)
        self._left -= 1


class Appointed(ErrorControl):
    """Error control that computes these ticks, and has only the order left to choose."""

    def __init__(self, ticks: Iterable[int], order: int, axis: Axis = "sigma") -> None:
        super().__init__(HALF, order, axis)
        self._ticks = frozenset(ticks)

    def affords(self, step: Step) -> bool:
        return step.tick in self._ticks

    def due(self, step: Step) -> bool:
        return self.affords(step)


def threshold_of(speedup: float) -> float:
    """At which one of so many ticks is computed, about."""
    return HALF * (speedup / 2) ** STEEPNESS
