"""The last step: what is left of the error of reuse is taken out of the result, as far as runs before have shown it."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from diffcache.engine.step_correction import StepCorrection, denoiser_input, guided_velocity
from diffcache.host.call import version_of
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.reports.records import TickCalls


class LastStep(StepCorrection):
    """Adds a weighted sum of what the run began with and of what it computed to the sample after its last step:

        x <- x + w_0 x_T + sum_t w_t v_t      (t: the computed ticks)

    Weights are those of a regression on the errors of earlier runs with the same ticks (see `profiling.calibrating.last_step`). The sum is
    made along the run, so one tensor is kept. A run is left as it is if its ticks or its samples are others than the weights are for, if
    the passes or the scale of guidance change within it, and if a hand-written loop replaces the sample between two steps. Our own.

    Args:
        timetable: of the run.
        weights: one for x_T, what the denoiser sees of the first sample, and one for the guided velocity of each tick; None where it is reused.
        hand_written: nothing else tells that samples are replaced.
    """

    def __init__(
        self, timetable: Timetable, weights: Sequence[float | None], *, hand_written: bool = False
    ) -> None:
        super().__init__(timetable)
        first, *self._of_tick = weights
        self._first = first or 0.0
        self._hand_written = hand_written
        self._sum: Tensor | None = None
        self._calls: tuple[tuple[str, str, int], ...] = ()
        self._last: tuple[Tensor, int | None] | None = None
        self._next = 0
        self._is_over = self._has_corrected = False

    @property
    def is_missing(self) -> bool:
        return not self._has_corrected

    def stepping(self, noise_scheduler: Any, tick: int, call: StepCall, called: TickCalls) -> StepCall:
        if self._is_over or not self._is_foreseen(tick, call, called):
            self.forget()
            return call
        if self._sum is None:
            self._sum, self._calls = self._first * denoiser_input(noise_scheduler, call), called.calls
        weight = self._of_tick[tick]
        if weight is not None:
            velocity = guided_velocity(self._timetable, noise_scheduler, tick, call)
            self._sum.add_(velocity, alpha=weight)
        self._next = tick + 1
        return call

    def stepped(self, sample: Tensor) -> None:
        if self._sum is not None and self._next == len(self._of_tick):
            sample.copy_(sample.float() + self._sum)
            self._has_corrected = True
            self.forget()
        elif self._hand_written:
            self._last = sample, version_of(sample)

    def forget(self) -> None:
        self._sum, self._last, self._is_over = None, None, True

    def tensors(self) -> Iterator[Tensor]:
        if self._sum is not None:
            yield self._sum

    def _is_foreseen(self, tick: int, call: StepCall, called: TickCalls) -> bool:
        """Whether it is the next tick, of the same samples and guidance, and is computed if the weights say so."""
        if not tick == self._next < len(self._of_tick):
            return False
        goes_on = self._sum is None or (
            self._sum.shape == call.sample.shape
            and called.calls == self._calls
            and self._timetable.are_comparable(0, tick)
            and self._goes_on_from(call.sample)
        )
        return goes_on and called.are_computed == (self._of_tick[tick] is not None)

    def _goes_on_from(self, sample: Tensor) -> bool:
        """Whether it holds what the last step returned. Loops may copy that into a tensor of their own."""
        if self._last is None:
            return True
        last, version = self._last
        if sample is last:
            return version_of(sample) == version
        return torch.equal(sample, last.to(sample))
