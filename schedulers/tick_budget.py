"""Cache schedulers with an error estimate that compute a fixed number of ticks, or ticks that are given."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from diffcache.schedulers.error_control import ErrorControl
from diffcache.schedulers.moments import Axis
from diffcache.schedulers.steps import Decision, Step

HALF = 0.02
"""Threshold, as a fraction of the output, at which about half of the ticks are computed. Measured on the testbeds in 50 steps."""

STEEPNESS = 3
"""The threshold grows with this power of the mean distance between computed ticks. Measured as `HALF` was."""

RESERVE = 0.8
"""Ticks may be computed ahead of the even pace while the rest of the run keeps this share of the even density. Our choice."""


class TickBudget(ErrorControl):
    """Error control that computes `count` of `num_ticks` ticks. Its threshold follows from what is left at a tick:

        threshold = HALF * (ticks left / (2 * computed ticks left))^STEEPNESS

    When no computed tick is left, the rest of the run is reused. When as many are left as there are ticks, all are computed.
    Each expected error is multiplied by how much it matters (`Step.weight`). Ticks may be computed early, within `RESERVE`,
    but never late: an estimate gets worse as a gap gets longer, so no gap is longer than even gaps would be.

    Args:
        num_ticks: length of the run.
        count: ticks to compute, those that guards force included.
        tail: ticks at the end of the run that guards force.
        order, axis: as for error control.
    """

    def __init__(self, num_ticks: int, count: int, tail: int, order: int, axis: Axis = "sigma") -> None:
        super().__init__(HALF, order, axis)
        self._end = num_ticks - tail
        self._left = count - tail
        self._even_gap = self._end / max(self._left, 1)

    def distrusts(self, measured: float) -> bool:
        return False

    def may_compute(self, step: Step) -> bool:
        return self._left > 0

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        if signal is None:  # only one tick has been computed, so no error is known yet
            return Decision.COMPUTE if self.must_compute(step) else Decision.HOLD
        return super().decide(step, signal)

    def must_compute(self, step: Step) -> bool:
        if not self.may_compute(step) or self._left >= self._end - step.tick:
            return self.may_compute(step)
        gap_left = (self._end - step.tick) / self._left
        self.threshold = threshold_for_speedup(gap_left)
        since_computed = step.tick - self._last_computed
        reserve = RESERVE if step.weight >= 1 else 1.0
        in_reserve = gap_left * reserve <= self._even_gap
        return super().must_compute(step) and (in_reserve or since_computed >= gap_left)

    def weight(self, step: Step) -> float:
        return step.weight

    def longest_gap(self, step: Step) -> float:
        """The even gap after the last computed tick, rounded to whole ticks; at least two."""
        return max(round((self._end - self._last_computed) / (self._left + 1)), 2)

    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        super().computed(latents, outputs)
        self._left -= 1


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
