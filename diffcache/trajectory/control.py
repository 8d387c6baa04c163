"""Cache schedulers that follow a plan: one unless errors are larger than planned, one to the letter. Both look at measured errors."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Decision, Step
from diffcache.trajectory.plan import TrajectoryPlan

SPEEDUPS = (8.0, 6.0, 5.0, 4.0, 3.5, 3.0, 2.75, 2.5, 2.25, 2.0, 1.8, 1.6, 1.0)
"""Plans are made for these, as far as they are asked for. Where even 1.6 is too much, an early tick that is skipped may cost more than it saves."""

ENOUGH = 2.0
"""A plan that saves less than this must be safer, in proportion: as many plain steps lose little then."""

TYPICAL = 2.0
"""Results of most runs are off by less than so many times the expected error: as many times it has to fit a threshold."""

OFF = 1.6
"""Where errors are so many times larger than a run has planned with, it follows a denser plan. Where they are smaller it keeps its own: gaps of one
plan do not continue those of another."""

RECENT = 4
"""The last so many errors say so."""

FORETOLD = 2
"""What is expected counts as much as so many measured errors."""

PredictionError = Callable[[Sequence[int], int], float]
"""Expected root mean square error of a prediction, as a fraction of the output, from computed ticks (newest first) and the predicted one."""

ExpectedOf = Callable[[Sequence[int]], float]
"""Expected root mean square error of a run's result, as a fraction of the velocities', by the computed ticks (by rising number from 0)."""


def cheapest(plans: Callable[[float], TrajectoryPlan], scale: float, threshold: float) -> float:
    """The largest of `SPEEDUPS` whose plan keeps a threshold if its expected error is multiplied by `scale`; 1 where none does.

    Below a speed-up of `ENOUGH` the threshold shrinks with it. Expected errors are taken to rise with the speed-up, so that few plans
    are made; where they do not, a smaller speed-up may be found.
    """
    found = bisect_left(SPEEDUPS, True, key=lambda speedup: scale * plans(speedup).expected <= threshold)
    for speedup in SPEEDUPS[found:]:
        if scale * plans(speedup).expected <= threshold * min(speedup / ENOUGH, 1.0):
            return speedup
    return SPEEDUPS[-1]


class PlanFollower(CacheScheduler):
    """Follows a plan, and compares measured errors with expected ones.

    At each computed tick the engine compares the prediction with what was computed. Where a run's predictions are off by twice as much as
    was expected, so is its result.

    Args:
        followed: the plan.
        prediction_error: what is expected.
    """

    compares = (Decision.PREDICT,)

    def __init__(self, followed: TrajectoryPlan, prediction_error: PredictionError) -> None:
        self._followed = followed
        self._prediction_error = prediction_error
        self._sizes = list[float]()
        self._logs = list[float]()

    @property
    def expected_error(self) -> float:
        return self.surprise * self._followed.expected

    def learn(self, computed: Sequence[int], squares: Sequence[float]) -> None:
        """Takes in an error; one of nothing, or one that is not finite, says nothing.

        Args:
            computed: computed ticks, newest first, at the newest of which it was measured.
            squares: of the velocity there, and of the prediction's error, in the mean over elements.
        """
        newest, *past = computed
        size, error = squares
        expected = self._prediction_error(past, newest)
        if expected > 0 and all(0 < value < math.inf for value in squares):
            # Of all velocities' size, as errors of the result are: that of a single one may be small.
            self._sizes.append(size)
            measured = math.sqrt(error * len(self._sizes) / sum(self._sizes))
            self._logs.append(math.log(measured / expected))

    @property
    def surprise(self) -> float:
        """Measured over expected errors of predictions, in the geometric mean."""
        return _mean(self._logs)


def _mean(logs: Sequence[float]) -> float:
    """The geometric mean of what these are the logarithms of, and of what was foretold, 1."""
    return math.exp(sum(logs) / (len(logs) + FORETOLD))


class ExpectedErrorControl(PlanFollower):
    """Follows the cheapest plan that keeps a threshold, and a denser one where errors are larger than it has planned with.

    After each computed tick the distance to the next one is the gap that the plan has there. The error that is expected of the result is
    that of the ticks that the run really computed.

    Args:
        num_ticks: length of the run.
        plans: the plan for a speed-up.
        prediction_error: see `PlanFollower`.
        expected_of: the error of the result.
        threshold: bound on `TYPICAL` times the expected error of the result, root mean square, as a fraction of the velocities'.
    """

    adaptive = True
    by_site = False

    def __init__(
        self,
        num_ticks: int,
        plans: Callable[[float], TrajectoryPlan],
        prediction_error: PredictionError,
        expected_of: ExpectedOf,
        threshold: float,
    ) -> None:
        self.threshold = threshold
        self._num_ticks = num_ticks
        self._plans = plans
        self._expected_of = expected_of
        super().__init__(plans(cheapest(plans, TYPICAL, threshold)), prediction_error)
        self._computed: Sequence[int] = []
        self._learned: int | None = None
        self._measured: Tensor | None = None
        self._next = 0
        self._planned_with = 1.0
        self._reused = set[int]()

    @property
    def expected_error(self) -> float:
        computed = [tick for tick in range(self._num_ticks) if tick not in self._reused]
        return self.surprise * self._expected_of(computed)

    def compared(self, past: Sequence[Moment], at: Moment, squares: Tensor) -> None:
        self._reused.discard(at.tick)  # a guard may compute what was to be reused
        self._measured = squares
        self._computed = [at.tick, *(moment.tick for moment in past)]

    def measure(self, latents: Sequence[Tensor]) -> Tensor | None:
        return self._measured

    def held(self) -> Iterator[Tensor]:
        if self._measured is not None:
            yield self._measured

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        if not self._computed:  # of two denoisers the second one's first tick comes late
            self._computed = [step.tick - 1]
            self._next = self._after()
        if signal is not None and self._computed[0] != self._learned:
            self._learned = self._computed[0]
            self.learn(self._computed, signal)
            self._next = self._after()
        if step.tick >= self._next:
            return Decision.COMPUTE
        self._reused.add(step.tick)
        return Decision.PREDICT

    def _after(self) -> int:
        """The next tick to compute."""
        newest = self._computed[0]
        recent = _mean(self._logs[-RECENT:])
        if recent > OFF * self._planned_with:
            self._planned_with = recent
            self._followed = self._plans(cheapest(self._plans, TYPICAL * recent, self.threshold))
        ticks = self._followed.ticks
        i = bisect_right(ticks, newest)
        return newest + (ticks[i] if i < len(ticks) else self._num_ticks) - ticks[i - 1]


class PlannedTicks(PlanFollower):
    """Computes a plan's ticks, and predicts the others. What was measured is read when the run is over."""

    by_site = False

    def __init__(self, followed: TrajectoryPlan, prediction_error: PredictionError) -> None:
        super().__init__(followed, prediction_error)
        self._unread: list[tuple[Sequence[int], Tensor]] = []

    def compared(self, past: Sequence[Moment], at: Moment, squares: Tensor) -> None:
        self._unread.append(([at.tick, *(moment.tick for moment in past)], squares))

    def held(self) -> Iterator[Tensor]:
        for _, squares in self._unread:
            yield squares

    @property
    def expected_error(self) -> float:
        if self._unread:
            values = torch.stack([*self.held()]).tolist()
            for (computed, _), squares in zip(self._unread, values, strict=True):
                self.learn(computed, squares)
            self._unread = []
        return super().expected_error

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return Decision.COMPUTE if step.tick in self._followed.ticks else Decision.PREDICT
