"""The cheapest plan that keeps a threshold, and a cache scheduler that goes over to a denser one where errors are larger than planned."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import neg

from torch import Tensor

from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Decision, Step
from diffcache.trajectory.following import (
    ErrorOfPrediction,
    ErrorOfResult,
    PlanFollower,
    mean_surprise,
    usual_contrast_factor,
)
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
    plans: Callable[[float], TrajectoryPlan], threshold: float, *, in_velocities: bool
) -> float:
    """The speed-up of the plan that a run with a threshold begins with.

    Args:
        plans: the plan for a speed-up.
        threshold: see `ExpectedErrorControl`.
        in_velocities: see `PlanFollower`.
    """
    return cheapest(plans, TYPICAL * usual_contrast_factor(in_velocities), threshold)


def percent(expected: float) -> str:
    """An expected error as reports say it."""
    return f"{expected:.1%}" if expected < 1 else "more than 100%"


class ExpectedErrorControl(PlanFollower):
    """Follows the cheapest plan that keeps a threshold, and a denser one where errors are larger than it has planned with.

    It computes those ticks of the plan that are still to come.

    Args:
        num_ticks: length of the run.
        plans: the plan for a speed-up.
        prediction_error, expected_of, in_velocities: see `PlanFollower`.
        threshold: bound on `TYPICAL` times the expected error of the result, root mean square, as a fraction of its contrast.
    """

    adaptive = True
    by_site = False

    def __init__(
        self,
        num_ticks: int,
        plans: Callable[[float], TrajectoryPlan],
        prediction_error: ErrorOfPrediction,
        expected_of: ErrorOfResult,
        threshold: float,
        in_velocities: bool,
    ) -> None:
        self.threshold = threshold
        self._num_ticks = num_ticks
        self._plans = plans
        self._speedup = first_speedup(plans, threshold, in_velocities=in_velocities)
        super().__init__(plans(self._speedup), prediction_error, expected_of, in_velocities)
        self._newest: int | None = None
        self._computed = set[int]()
        self._planned_with = self.contrast_factor
        self._went_denser = False

    def compared(self, past: Sequence[Moment], at: Moment, squares: Tensor) -> None:
        super().compared(past, at, squares)
        self._newest = at.tick
        self._computed |= {moment.tick for moment in (at, *past)}

    def measure(self, latents: Sequence[Tensor]) -> Tensor | None:
        return self._unread[0][1] if self._unread else None  # the oldest; `decide` takes it in

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
            f"the run was worse than planned: an error of {percent(expected)} is expected of the result, and threshold={self.threshold:g} is "
            f"meant to keep it below {percent(self.threshold / TYPICAL)}: pass a smaller threshold, or compare the run with fewer steps"
        )

    def _follow_denser(self) -> None:
        """Where the last errors are larger than the plan was made with, or the contrast of the result is smaller."""
        recent = mean_surprise(self._logs[-RECENT:]) * self.contrast_factor
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
        return ticks[i] if i < len(ticks) else self._num_ticks
