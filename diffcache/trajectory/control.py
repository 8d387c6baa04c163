"""Cache schedulers that follow a plan: one as far as a threshold allows, one to the letter. Both look at measured errors."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Decision, Step
from diffcache.trajectory.plan import TrajectoryPlan

SPEEDUPS = (8.0, 6.0, 5.0, 4.0, 3.5, 3.0, 2.75, 2.5, 2.25, 2.0, 1.8, 1.6, 1.4, 1.2, 1.0)
"""Plans are made for these, as far as they are asked for."""

GROWTH = 2
"""Longest gap between computed ticks over the gap before it, so that a smooth stretch cannot hide a bend that follows."""

CAUTION = 2.0
"""The factor with which a run begins, before anything is measured: the first ticks count most, and what they lose stays lost."""


class Comparing(CacheScheduler):
    """Decides by the errors that reuse would have had at the newest computed tick, which the engine measures there."""

    adaptive = True

    def __init__(self) -> None:
        self._measured: Tensor | None = None

    def compared(self, past: Sequence[Moment], at: Moment, errors: Tensor) -> None:
        self._measured = errors

    def measure(self, latents: Sequence[Tensor]) -> Tensor | None:
        return self._measured

    def held(self) -> Iterator[Tensor]:
        if self._measured is not None:
            yield self._measured


class ExpectedErrorControl(Comparing):
    """Follows the cheapest plan whose expected error is below a threshold, and corrects that expectation as the run goes on.

    A covariance that fits many denoisers says how the error depends on the ticks, and less well how large it is. At each
    computed tick after a gap the engine compares the prediction with what was computed. The geometric mean of
    measured over expected errors is the factor by which this run differs from the covariance. All expected errors are multiplied by it.
    The next gap is as long as the cheapest plan then has it at this place.

    Args:
        num_ticks: length of the run.
        plans: the plan for a speed-up.
        prediction_error: expected root mean square error of a prediction, as a fraction of the output, from computed ticks
            (newest first) and the predicted tick.
        threshold: bound on the expected error of the result, root mean square, as a fraction of the velocities'.
    """

    by_site = False
    compares = (Decision.PREDICT,)

    def __init__(
        self,
        num_ticks: int,
        plans: Callable[[float], TrajectoryPlan],
        prediction_error: Callable[[Sequence[int], int], float],
        threshold: float,
    ) -> None:
        super().__init__()
        self.threshold = threshold
        self._num_ticks = num_ticks
        self._plans = plans
        self._prediction_error = prediction_error
        self._computed: list[int] = [0]
        self._used = 0
        self._logs = [math.log(CAUTION)]
        self._next = self._after()

    def compared(self, past: Sequence[Moment], at: Moment, errors: Tensor) -> None:
        super().compared(past, at, errors)
        self._computed = [at.tick, *(moment.tick for moment in past)]

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        if signal is not None and self._computed[0] != self._used:
            self._used = self._computed[0]
            self._learn(signal[0])
            self._next = self._after()
        return Decision.COMPUTE if step.tick >= self._next else Decision.PREDICT

    @property
    def scale(self) -> float:
        """Measured over expected errors, so far."""
        return math.exp(sum(self._logs) / len(self._logs))

    @property
    def expected_error(self) -> float:
        return self.scale * self._followed.expected

    def _learn(self, measured: float) -> None:
        newest, *past = self._computed
        if len(past) == 1:  # what is held says little about what is extrapolated
            return
        expected = self._prediction_error(past, newest)
        if 0 < measured < math.inf and expected > 0:
            self._logs.append(math.log(measured / expected))

    def _after(self) -> int:
        """The next tick to compute."""
        newest, *past = self._computed
        chosen = bisect_left(SPEEDUPS, True, key=lambda speedup: self._keeps(self._plans(speedup)))
        self._followed = self._plans(SPEEDUPS[min(chosen, len(SPEEDUPS) - 1)])
        ticks = self._followed.ticks
        i = bisect_right(ticks, newest)
        gap = (ticks[i] if i < len(ticks) else self._num_ticks) - ticks[i - 1]
        return newest + (min(gap, GROWTH * (newest - past[0])) if past else gap)

    def _keeps(self, plan: TrajectoryPlan) -> bool:
        return self.scale * plan.expected <= self.threshold


class PlannedTicks(Comparing):
    """Computes given ticks. Others are predicted, or held where holding would have been nearer at the last computed tick.

    Args:
        computed: the ticks.
    """

    by_site = False
    compares = (Decision.PREDICT, Decision.HOLD)

    def __init__(self, computed: Iterable[int]) -> None:
        super().__init__()
        self._planned = frozenset(computed)

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        if step.tick in self._planned:
            return Decision.COMPUTE
        if signal is None:
            return Decision.PREDICT
        predicted, held = signal
        return Decision.HOLD if held < predicted else Decision.PREDICT
