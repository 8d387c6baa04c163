"""Cache schedulers that follow a plan, and compare measured errors with expected ones."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.moments import Moment, signal_and_noise
from diffcache.schedulers.steps import Decision, Step
from diffcache.trajectory.plan import TrajectoryPlan

USUAL = 1.45
"""Root mean square of the velocities over the contrast of the result (its standard deviation) where that is not measured yet: what latents of autoencoders
have, whose contrast is about 1. Pictures in pixels have less: there it is 2 to 4."""

LATE = math.pi / 4
"""Below this angle a sample shows the contrast of the result, within about 10 %."""

MADE_UP_ERRORS = 2
"""The mean counts this many made-up errors of exactly the expected size, so that one measurement does not decide."""

ErrorOfPrediction = Callable[[Sequence[int], int], float]
"""Expected root mean square error of a prediction, as a fraction of the velocities', from computed ticks (newest first) and the predicted one."""

ErrorOfResult = Callable[[Sequence[int]], float]
"""Expected root mean square error of a run's result, as a fraction of the velocities', by the computed ticks (by rising number from 0)."""


class PlanFollower(CacheScheduler):
    """Follows a plan, and compares measured errors with expected ones.

    At each computed tick the engine compares the prediction with what was computed. Where a run's predictions are off by more than was
    expected, so is its result.

    Args:
        followed: the plan.
        prediction_error: the expected error of a prediction.
        expected_of: the error of the result.
        in_velocities: errors are told as fractions of the velocities, not of the contrast of the result.
    """

    compares = (Decision.PREDICT,)

    def __init__(
        self,
        followed: TrajectoryPlan,
        prediction_error: ErrorOfPrediction,
        expected_of: ErrorOfResult,
        in_velocities: bool,
    ) -> None:
        self._followed = followed
        self._prediction_error = prediction_error
        self._expected_of = expected_of
        self._in_velocities = in_velocities
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
        return expected and self.surprise * expected * self.contrast_factor

    @property
    def contrast_factor(self) -> float:
        """What turns an error as a fraction of the velocities into one of the result, as a fraction of its contrast."""
        if self._in_velocities or self._contrast is None or not self._sizes:
            return usual_contrast_factor(self._in_velocities)
        return math.sqrt(sum(self._sizes) / len(self._sizes)) / self._contrast

    def take_in(self, moments: Sequence[Moment], squares: Sequence[float]) -> None:
        """Takes in what was measured at a computed tick.

        Args:
            moments: of computed ticks, newest first; at the newest of them it was measured.
            squares: see `CacheScheduler.compared`.
        """
        *errors, variance = squares
        self.learn([moment.tick for moment in moments], errors)
        self._contrast = contrast_at(moments[0], variance) or self._contrast

    @property
    def surprise(self) -> float:
        """Measured over expected errors of predictions."""
        return mean_surprise(self._logs)

    def learn(self, computed: Sequence[int], squares: Sequence[float]) -> None:
        """Takes in an error. One of exactly 0 says nothing; after one that is not finite the expected error is infinite.

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


class PlannedTicks(PlanFollower):
    """Computes a plan's ticks, and predicts the others. What was measured is read when the run is over."""

    by_site = False

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return Decision.COMPUTE if step.tick in self._followed.ticks else Decision.PREDICT


def usual_contrast_factor(in_velocities: bool) -> float:
    """What turns errors as fractions of the velocities into those of the result, as fractions of its contrast, before anything is measured."""
    return 1.0 if in_velocities else USUAL


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


def mean_surprise(logs: Sequence[float]) -> float:
    """The geometric mean of measured over expected errors, from their logarithms, with `MADE_UP_ERRORS` ones counted in."""
    return math.exp(sum(logs) / (len(logs) + MADE_UP_ERRORS))
