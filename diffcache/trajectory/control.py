"""Cache schedulers that follow a plan: one as far as a threshold allows, one to the letter. Both look at measured errors."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Decision, Step
from diffcache.trajectory.plan import TrajectoryPlan
from diffcache.trajectory.result_error import WINDOW

SPEEDUPS = (8.0, 6.0, 5.0, 4.0, 3.5, 3.0, 2.75, 2.5, 2.25, 2.0, 1.8, 1.6, 1.0)
"""Plans are made for these, as far as they are asked for. Where even 1.6 is too much, an early tick that is skipped may cost more than it saves."""

ENOUGH = 2.0
"""A plan that saves less than this must be safer, in proportion: as many plain steps lose little then."""

TYPICAL = 2.0
"""Results of most runs are off by less than so many times the expected error: as many times it has to fit a threshold."""

RECENT = 4
"""So many measured errors say whether a run is as foretold. Before there are as many, what is expected stands for the others."""

SURPRISING = math.e
"""Measured errors that differ from expected ones by a smaller factor say nothing of the result: denoisers' responses differ more."""

FEWEST = WINDOW + 1
"""Computed ticks, the newest among them, that make a measured error one of a prediction from as many ticks as it may use."""

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

    At each computed tick the engine compares the prediction with what was computed.

    Args:
        followed: the plan.
        prediction_error: what was expected.

    Attributes:
        measured: computed ticks, and logarithms of measured over expected errors there.
    """

    compares = (Decision.PREDICT,)

    def __init__(self, followed: TrajectoryPlan, prediction_error: PredictionError) -> None:
        self._followed = followed
        self._prediction_error = prediction_error
        self.measured: list[tuple[int, float]] = []

    @property
    def expected_error(self) -> float:
        return self.surprise * self._followed.expected

    def learn(self, computed: Sequence[int], measured: float) -> None:
        """Takes in an error.

        Args:
            computed: computed ticks, newest first, at the newest of which it was measured.
            measured: root mean square, as a fraction of the output.
        """
        newest, *past = computed
        if len(computed) >= FEWEST:  # what is held says little about what is extrapolated
            expected = self._prediction_error(past, newest)
            if 0 < measured < math.inf and expected > 0:
                self.measured.append((newest, math.log(measured / expected)))

    @property
    def surprise(self) -> float:
        """What expected errors are multiplied by: how much the last few measured ones differ from these, beyond `SURPRISING`."""
        limit = math.log(SURPRISING)
        apart = sum(log for _, log in self.measured[-RECENT:]) / RECENT
        return math.exp(apart - min(max(apart, -limit), limit))


class ExpectedErrorControl(PlanFollower):
    """Follows the cheapest plan whose expected error is below a threshold, and another one where errors are surprising.

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
        self._reused = set[int]()

    @property
    def expected_error(self) -> float:
        computed = [tick for tick in range(self._num_ticks) if tick not in self._reused]
        return self.surprise * self._expected_of(computed)

    def compared(self, past: Sequence[Moment], at: Moment, errors: Tensor) -> None:
        self._reused.discard(at.tick)  # a guard may compute what was to be reused
        self._measured = errors
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
            self.learn(self._computed, signal[0])
            self._next = self._after()
        if step.tick >= self._next:
            return Decision.COMPUTE
        self._reused.add(step.tick)
        return Decision.PREDICT

    def _after(self) -> int:
        """The next tick to compute."""
        newest = self._computed[0]
        self._followed = self._plans(cheapest(self._plans, TYPICAL * self.surprise, self.threshold))
        ticks = self._followed.ticks
        i = bisect_right(ticks, newest)
        return newest + (ticks[i] if i < len(ticks) else self._num_ticks) - ticks[i - 1]


class PlannedTicks(PlanFollower):
    """Computes a plan's ticks, and predicts the others. What was measured is read when the run is over."""

    by_site = False

    def __init__(self, followed: TrajectoryPlan, prediction_error: PredictionError) -> None:
        super().__init__(followed, prediction_error)
        self._unread: list[tuple[Sequence[int], Tensor]] = []

    def compared(self, past: Sequence[Moment], at: Moment, errors: Tensor) -> None:
        self._unread.append(([at.tick, *(moment.tick for moment in past)], errors))

    def held(self) -> Iterator[Tensor]:
        for _, errors in self._unread:
            yield errors

    @property
    def expected_error(self) -> float:
        if self._unread:
            values = torch.cat([*self.held()]).tolist()
            for (computed, _), measured in zip(self._unread, values, strict=True):
                self.learn(computed, measured)
            self._unread = []
        return super().expected_error

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return Decision.COMPUTE if step.tick in self._followed.ticks else Decision.PREDICT
