"""The cache scheduler with an error estimate and a budget: so many computed ticks, where they are expected to matter most."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from diffcache.schedulers.error_control import ErrorControl
from diffcache.schedulers.moments import Axis
from diffcache.schedulers.steps import Step

HALF = 0.02
"""The threshold at which half of the ticks are computed, about, on the testbeds in 50 steps."""

STEEPNESS = 3
"""And the power of how sparse computed ticks are to be with which it grows there."""

RESERVE = 0.7
"""Of the even density, what a stretch that bends must leave to the ticks after it: they may matter more."""

LONGEST = 1.5
"""Of the even gap, what a gap may be where nothing seems to bend, for the same reason."""


class Allowance(ErrorControl):
    """Error control that computes `count` of `num_ticks` ticks, with a threshold that follows from what is left:

        threshold = HALF * (ticks left / (2 * computed ticks left))^STEEPNESS

    When nothing is left, the rest is reused; when as much is left as there are ticks, they are computed. What is measured
    is the error of the output, not what becomes of it, so the density of computed ticks stays within bounds of an even one.

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

    def due(self, step: Step) -> bool:
        if not self.affords(step) or self._left >= self._end - step.tick:
            return self.affords(step)
        sparseness = self._sparseness(step)
        self.threshold = threshold_of(sparseness)
        waited = step.tick - self._points[0].tick
        return super().due(step) and (sparseness * RESERVE <= self._even or waited >= sparseness)

    def longest(self, step: Step) -> float:
        """A gap may also be as long as even ones would be: small budgets cannot grow theirs one by one."""
        return min(max(super().longest(step), self._sparseness(step)), LONGEST * self._even)

    def _sparseness(self, step: Step) -> float:
        """Ticks left for each that may be computed."""
        return (self._end - step.tick) / self._left

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
