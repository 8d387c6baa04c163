"""Guided velocities: where two guidance passes are mixed, what the noise scheduler gets is predicted and corrected, not what each pass returns."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from diffcache.engine.step_hindsight import Computed, StepHindsight
from diffcache.kernels.extrapolate import extrapolate
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.prediction.hindsight import ReusedTick, hindsight_weights, trusted
from diffcache.reports.records import Passes
from diffcache.schedulers.moments import Moment
from diffcache.store.rings import Setup


class GuidedSteps(StepHindsight):
    """Predicts and corrects the guided velocity, in place of those of the guidance passes.

    The noise scheduler adds up guided velocities. Plain guidance mixes the passes linearly, so a weighted sum of its outputs is what it makes of
    weighted sums. Guidance that keeps the norm, or rescales, does not: its factor at the tick that corrects is not the one at the ticks that are
    corrected. So the same weights are given to what the pipeline has made of both passes. Our own.

    While it has a guided velocity, outputs of the passes are not corrected (`Setup.corrects_outputs`). It begins anew where other passes are
    called than before, as where guidance is given only for a part of the run, or where its scale changes.

    Args:
        times: of the run.
        setup: of the denoiser; its predictor and its curve give the weights.
    """

    def __init__(self, times: Timetable, setup: Setup) -> None:
        super().__init__(times)
        self._setup = setup
        self._past: deque[Computed] = deque(maxlen=setup.depth)
        self._reused: list[ReusedTick] = []
        self._calls: tuple[tuple[str, str, int], ...] = ()

    def stepping(self, noise_scheduler: Any, tick: int, call: StepCall, passes: Passes) -> StepCall:
        self.is_told = True
        if passes.calls != self._calls or not self._is_comparable(tick):
            self.forget()
        self._calls = passes.calls
        now = self._times.moment(tick)
        if passes.are_computed:
            return self._computed(noise_scheduler, now, call)
        if not self._past or len(passes.decisions) > 1:
            return call
        (decision,) = passes.decisions
        predictor = self._setup.serving[decision]
        self._reused.append(ReusedTick(now, predictor))
        weights = predictor.weights(self._moments[: predictor.depth], now)
        known = [one.velocity for one in islice(self._past, len(weights))]
        velocity = extrapolate(known, weights, None, torch.float32)
        return self._with(velocity, noise_scheduler, tick, call)

    def forget(self) -> None:
        self._past.clear()
        self._reused = []
        self._setup.corrects_outputs = self._setup.hindsight

    def tensors(self) -> Iterator[Tensor]:
        yield from (computed.velocity for computed in self._past)

    @property
    def _moments(self) -> list[Moment]:
        return [computed.moment for computed in self._past]

    def _is_comparable(self, tick: int) -> bool:
        return all(self._times.are_comparable(moment.tick, tick) for moment in self._moments)

    def _computed(self, noise_scheduler: Any, now: Moment, call: StepCall) -> StepCall:
        """Keeps the guided velocity of a computed tick. Returns the call with one that corrects the reused ticks before it."""
        velocity = self._velocity(noise_scheduler, now.tick, call)
        reused, self._reused = self._reused, []
        if reused:
            curve = self._setup.curve
            weights = hindsight_weights(reused, now, self._moments, self._ratio, curve)
            known = [velocity, *(one.velocity for one in self._past)]
            change = extrapolate(known, weights, None, torch.float32)
            corrected = velocity + (trusted(change, velocity) if curve.doubted else change)
            call = self._with(corrected, noise_scheduler, now.tick, call)
        self._past.appendleft(Computed(now, velocity))
        self._setup.corrects_outputs = False
        return call

    def _ratio(self, tick: int, other: int) -> float | None:
        """Of velocities: an output changes with its velocity by `of_velocity`."""
        found = self._times.ratio(tick, other)
        if found is None:
            return None
        return found * self._times.output(tick).of_velocity / self._times.output(other).of_velocity
