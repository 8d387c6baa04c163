"""Cache schedulers that follow a plan. One goes over to a denser plan where errors are larger than planned; the other keeps to its plan."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import neg

import torch
from torch import Tensor

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.moments import Moment, signal_and_noise
from diffcache.schedulers.steps import Decision, Step
from diffcache.trajectory.plan import TrajectoryPlan

SPEEDUPS = (8.0, 6.0, 5.0, 4.0, 3.5, 3.0, 2.75, 2.5, 2.25, 2.0, 1.8, 1.6, 1.0)
"""The speed-ups that are tried, the largest first; a plan is made only when it is needed. Nothing lies between 1.6 and 1: to skip so few ticks may cost
more than it saves."""

ENOUGH = 2.0
"""Below this speed-up the allowed error shrinks in proportion: fewer plain steps lose little there."""

POWER = 3.0
"""Expected errors grow about with this power of the speed-up. It only says which plan is tried next: on the testbeds, 2.8 are made instead of the 3.6
of a bisection."""

TYPICAL = 2.0
"""Most results are off by less than this many times the expected error. So this many times the expected error must stay below the threshold."""

OFF = 1.6
"""Where errors are this many times larger than a run has planned with, it follows a denser plan. Where they are smaller it keeps its own: the gaps of
one plan do not continue those of another."""

SPENT = 1.4
"""Where no plan keeps the threshold any more, a run goes on with the cheapest one that leaves an error of at most this many times the one that is left if
all other ticks are computed. What has been reused cannot be mended."""

RECENT = 4
"""How many of the last errors are compared with that."""

FORETOLD = 2
"""The mean counts this many made-up errors of exactly the expected size, so that one measurement does not decide."""

USUAL = 1.45
"""Root mean square of the velocities over the contrast of the result (its standard deviation) where that is not measured yet: what latents of autoencoders
have, whose contrast is about 1. Pictures in pixels have less: there it is 2 to 4."""

LATE = math.pi / 4
"""Below this angle a sample shows the contrast of the result, within about 10 %."""

PredictionError = Callable[[Sequence[int], int], float]
"""Expected root mean square error of a prediction, as a fraction of the velocities', from computed ticks (newest first) and the predicted one."""

ExpectedOf = Callable[[Sequence[int]], float]
"""Expected root mean square error of a run's result, as a fraction of the velocities', by the computed ticks (by rising number from 0)."""


def cheapest(plans: Callable[[float], TrajectoryPlan], scale: float, threshold: float) -> float:
    """The largest of `SPEEDUPS` whose plan keeps a threshold if its expected error is multiplied by `scale`; 1 where none does.

    Below a speed-up of `ENOUGH` the threshold shrinks with it. Expected errors are taken to rise with the speed-up, so that few plans
    are made; where they do not, a smaller speed-up may be found.
    """
    breaks, keeps = -1, len(SPEEDUPS) - 1
    tried = keeps // 2
    while keeps - breaks > 1:
        error = scale * plans(SPEEDUPS[tried]).expected
        breaks, keeps = (breaks, tried) if error <= threshold else (tried, keeps)
        guess = SPEEDUPS[tried] * (threshold / error) ** (1 / POWER) if error else math.inf
        tried = min(max(bisect_left(SPEEDUPS, -guess, key=neg), breaks + 1), keeps - 1)
    for speedup in SPEEDUPS[keeps:]:
        if scale * plans(speedup).expected <= threshold * min(speedup / ENOUGH, 1.0):
            return speedup
    return SPEEDUPS[-1]


def first_speedup(
    plans: Callable[[float], TrajectoryPlan], threshold: float, *, of_velocities: bool
) -> float:
    """The speed-up of the plan that a run with a threshold begins with.

    Args:
        plans: the plan for a speed-up.
        threshold: see `ExpectedErrorControl`.
        of_velocities: see `PlanFollower`.
    """
    return cheapest(plans, TYPICAL * of_usual_contrast(of_velocities), threshold)


class PlanFollower(CacheScheduler):
    """Follows a plan, and compares measured errors with expected ones.

    At each computed tick the engine compares the prediction with what was computed. Where a run's predictions are off by more than was
    expected, so is its result.

    Args:
        followed: the plan.
        prediction_error: the expected error of a prediction.
        expected_of: the error of the result.
        of_velocities: errors are told as fractions of the velocities, not of the contrast of the result.
    """

    compares = (Decision.PREDICT,)

    def __init__(
        self,
        followed: TrajectoryPlan,
        prediction_error: PredictionError,
        expected_of: ExpectedOf,
        of_velocities: bool = False,
    ) -> None:
        self._followed = followed
        self._prediction_error = prediction_error
        self._expected_of = expected_of
        self._of_velocities = of_velocities
        self._unread: list[tuple[list[Moment], Tensor]] = []
        self._sizes = list[float]()
        self._logs = list[float]()
        self._contrast: float | None = None

    def compared(self, past: Sequence[Moment], at: Moment, squares: Tensor) -> None:
        self._unread.append(([at, *past], squares))

    def held(self) -> Iterator[Tensor]:
        for _, squares in self._unread:
            yield squares

    def expected_error(self, computed: Sequence[int]) -> float:
        if self._unread:
            values = torch.stack([*self.held()]).tolist()
            for (moments, _), squares in zip(self._unread, values, strict=True):
                self.take_in(moments, squares)
            self._unread = []
        expected = self._expected_of(computed)  # guards may have computed ticks that were to be reused
        return expected and self.surprise * expected * self.of_contrast

    @property
    def of_contrast(self) -> float:
        """What turns an error as a fraction of the velocities into one of the result, as a fraction of its contrast."""
        if self._of_velocities or self._contrast is None or not self._sizes:
            return of_usual_contrast(self._of_velocities)
        return math.sqrt(sum(self._sizes) / len(self._sizes)) / self._contrast

    def take_in(self, moments: Sequence[Moment], squares: Sequence[float]) -> None:
        """Takes in what was measured at a computed tick.

        Args:
            moments: of computed ticks, newest first; at the newest of them it was measured.
            squares: see `CacheScheduler.compared`.
        """
        *of_velocities, variance = squares
        self.learn([moment.tick for moment in moments], of_velocities)
        self._contrast = contrast_at(moments[0], variance) or self._contrast

    @property
    def surprise(self) -> float:
        """Measured over expected errors of predictions."""
        return _mean(self._logs)

    def learn(self, computed: Sequence[int], squares: Sequence[float]) -> None:
        """Takes in an error. One of exactly 0 says nothing; after one that is not finite any error is expected.

        Args:
            computed: computed ticks, newest first, at the newest of which it was measured.
            squares: of the velocity there, and of the prediction's error, in the mean over elements.
        """
        newest, *past = computed
        size, error = squares
        expected = self._prediction_error(past, newest)
        if not all(map(math.isfinite, squares)):
            self._logs.append(math.inf)
            return
        if size > 0:
            self._sizes.append(size)
        if expected > 0 and min(squares) > 0:
            # As a fraction of all velocities, as errors of the result are: a single one may be small.
            measured = math.sqrt(error * len(self._sizes) / sum(self._sizes))
            self._logs.append(math.log(measured / expected))


def of_usual_contrast(of_velocities: bool) -> float:
    """What turns errors as fractions of the velocities into those of the result, as fractions of its contrast, before anything is measured."""
    return 1.0 if of_velocities else USUAL


def contrast_at(moment: Moment, variance: float) -> float | None:
    """The standard deviation of a run's result, by a sample on the way to it; None where it does not tell.

    Args:
        moment: of the sample.
        variance: of the sample, which holds noise of variance 1.
    """
    if moment.angle is None or not moment.angle < LATE:
        return None
    signal, noise = signal_and_noise(moment.angle, moment.is_flow)
    clean = variance - noise**2
    return math.sqrt(clean) / signal if 0 < clean < math.inf else None


def shown(expected: float) -> str:
    """An expected error as reports say it."""
    return f"{expected:.1%}" if expected < 1 else "more than 100%"


def _mean(logs: Sequence[float]) -> float:
    """The geometric mean of measured over expected errors, from their logarithms, with `FORETOLD` ones counted in."""
    return math.exp(sum(logs) / (len(logs) + FORETOLD))


class ExpectedErrorControl(PlanFollower):
    """Follows the cheapest plan that keeps a threshold, and a denser one where errors are larger than it has planned with.

    After each computed tick the distance to the next one is the gap that the plan has there.

    Args:
        num_ticks: length of the run.
        plans: the plan for a speed-up.
        prediction_error, expected_of, of_velocities: see `PlanFollower`.
        threshold: bound on `TYPICAL` times the expected error of the result, root mean square, as a fraction of its contrast.
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
        of_velocities: bool = False,
    ) -> None:
        self.threshold = threshold
        self._num_ticks = num_ticks
        self._plans = plans
        self._speedup = first_speedup(plans, threshold, of_velocities=of_velocities)
        super().__init__(plans(self._speedup), prediction_error, expected_of, of_velocities)
        self._newest: int | None = None
        self._computed = set[int]()
        self._planned_with = self.of_contrast
        self._went_denser = False

    def compared(self, past: Sequence[Moment], at: Moment, squares: Tensor) -> None:
        super().compared(past, at, squares)
        self._newest = at.tick
        self._computed |= {moment.tick for moment in (at, *past)}

    def measure(self, latents: Sequence[Tensor]) -> Tensor | None:
        return self._unread[0][1] if self._unread else None

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        # Nothing has been compared yet: the tick before was this denoiser's first one, or the first since all was forgotten.
        if self._newest is None:
            self._newest = step.tick - 1
        if signal is not None:
            moments, _ = self._unread.pop(0)
            self.take_in(moments, signal)
            self._follow_denser()
        return Decision.COMPUTE if step.tick >= self._after(self._newest) else Decision.PREDICT

    def remark(self, expected: float) -> str | None:
        if TYPICAL * expected <= self.threshold:
            if not expected or not self._went_denser or len(self._followed.ticks) < self._num_ticks:
                return None
            return (
                "the run was worse than planned: what was left of the run was computed, since no plan was expected to keep "
                f"threshold={self.threshold:g} any more: raise it, or pass speedup="
            )
        return (
            f"the run was worse than planned: an error of {shown(expected)} is expected of the result, and threshold={self.threshold:g} is "
            f"meant to keep it below {shown(self.threshold / TYPICAL)}: pass a smaller threshold, or compare the run with fewer steps"
        )

    def _follow_denser(self) -> None:
        """Where the last errors are larger than the plan was made with, or the contrast of the result is smaller."""
        recent = _mean(self._logs[-RECENT:]) * self.of_contrast
        if recent > OFF * self._planned_with:
            self._planned_with, self._went_denser, before = recent, True, self._speedup
            self._speedup = cheapest(self._plans, TYPICAL * recent, self.threshold)
            if self._speedup == 1 and math.isfinite(recent):
                self._speedup = self._worth_computing(before)
            self._followed = self._plans(self._speedup)

    def _worth_computing(self, before: float) -> float:
        """Where no plan keeps the threshold any more: the largest speed-up, of at most `before`, that leaves hardly a larger error than computing all that is left.

        What has been reused cannot be mended. Ticks before the first one that it knows of were another's, and count as computed.
        """
        known = self._computed | {*range(min(self._computed))}

        def left_by(speedup: float) -> float:
            later = {tick for tick in self._plans(speedup).ticks if tick > max(known)}
            return self._expected_of(sorted(known | later))

        spent = left_by(1.0)
        left = (each for each in SPEEDUPS if each <= before and left_by(each) <= SPENT * spent)
        return next(left, 1.0)

    def _after(self, computed: int) -> int:
        """The tick to compute after a computed one."""
        ticks = self._followed.ticks
        i = bisect_right(ticks, computed)
        return computed + (ticks[i] if i < len(ticks) else self._num_ticks) - ticks[i - 1]


class PlannedTicks(PlanFollower):
    """Computes a plan's ticks, and predicts the others. What was measured is read when the run is over."""

    by_site = False

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return Decision.COMPUTE if step.tick in self._followed.ticks else Decision.PREDICT
