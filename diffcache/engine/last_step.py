"""The last step: what is left of the error of reuse is taken out of the result, as far as runs before have shown it."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from diffcache.engine.step_correction import StepCorrection, guided_velocity, seen
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.reports.records import Passes


class LastStep(StepCorrection):
    """Adds a weighted sum of what the run began with and of what it computed to the sample after its last step:

        x <- x + w_0 x_T + sum_t w_t v_t      (t: the computed ticks)

    Weights are those of a regression on the errors of earlier runs with the same ticks (see `profiling.calibrating.last_step`). The sum is
    made along the run, so one tensor is kept. A run with other ticks than the weights are for is left as it is. Our own.

    Args:
        times: of the run.
        weights: one for x_T, what the denoiser sees of the first sample, and one for the guided velocity of each tick: 0 where it is reused.
    """

    def __init__(self, times: Timetable, weights: Sequence[float]) -> None:
        super().__init__(times)
        self._first, *self._of_tick = weights
        self._sum: Tensor | None = None
        self._next = 0
        self._is_over = False

    def stepping(self, noise_scheduler: Any, tick: int, call: StepCall, passes: Passes) -> StepCall:
        if self._is_over or not self._is_foreseen(tick, call, passes):
            self.forget()
            return call
        if self._sum is None:
            self._sum = self._first * seen(noise_scheduler, call)
        if passes.are_computed:
            velocity = guided_velocity(self._times, noise_scheduler, tick, call)
            self._sum.add_(velocity, alpha=self._of_tick[tick])
        self._next = tick + 1
        return call

    def stepped(self, sample: Tensor) -> None:
        if self._sum is not None and self._next == len(self._of_tick):
            sample.copy_(sample.float() + self._sum)
            self.forget()

    def forget(self) -> None:
        self._sum, self._is_over = None, True

    def tensors(self) -> Iterator[Tensor]:
        if self._sum is not None:
            yield self._sum

    def _is_foreseen(self, tick: int, call: StepCall, passes: Passes) -> bool:
        """Whether it is the next tick, of as many samples, and is computed if the weights say so."""
        known = tick == self._next < len(self._of_tick)
        alike = self._sum is None or self._sum.shape == call.sample.shape
        return known and alike and passes.are_computed == (self._of_tick[tick] != 0)
