"""Guided velocities: where guidance is not linear in its passes, what the noise scheduler gets is predicted and corrected, not what each pass returns."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.engine.step_correction import StepCorrection, guided_velocity
from diffcache.kernels.extrapolate import extrapolate
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.prediction.hindsight import ReusedTick, hindsight_weights, trusted
from diffcache.reports.records import TickCalls
from diffcache.schedulers.moments import Moment
from diffcache.store.formats import Ring
from diffcache.store.rings import StoreSetup


class GuidedSteps(StepCorrection):
    """Predicts and corrects the guided velocity, in place of those of the guidance passes.

    The noise scheduler adds up guided velocities. Plain guidance is linear in its passes, so that each of them can be predicted and corrected alone.
    Guidance that keeps the norm, or rescales, does not: its factor at the tick that corrects is not the one at the ticks that are
    corrected. So the same weights are given to what the pipeline has made of both passes. Our own.

    Meanwhile outputs of the passes are not corrected (`StoreSetup.steps_correct`). It ends, for the rest of the run, where other passes are called than
    before, where only one of them is computed, where the scale of guidance changes, and where all is forgotten: from there on each pass is corrected for itself.

    Args:
        timetable: of the run.
        setup: of the denoiser; its predictor and its curve give the weights, and its format stores.
    """

    def __init__(self, timetable: Timetable, setup: StoreSetup) -> None:
        super().__init__(timetable)
        self._setup = setup
        self._ring: Ring = deque(maxlen=setup.depth)
        self._reused: list[ReusedTick] = []
        self._calls: tuple[tuple[str, str, int], ...] | None = None
        self._is_over = False

    @property
    def obstacle(self) -> str | None:
        return None if self._timetable.influence is None else self._timetable.influence.obstacle

    def stepping(self, noise_scheduler: Any, tick: int, call: StepCall, called: TickCalls) -> StepCall:
        if self._is_over or not self._goes_on(tick, called):
            self.forget()
            return call
        self.has_seen_steps, self._calls, now = True, called.calls, self._timetable.moment(tick)
        if called.are_computed:
            return self._computed(noise_scheduler, now, call)
        (decision,) = called.decisions
        predictor = self._setup.serving[decision]
        self._reused.append(ReusedTick(now, predictor))
        weights = predictor.weights(self._moments[: predictor.depth], now)
        return self._with(self._sum(weights), noise_scheduler, tick, call)

    def forget(self) -> None:
        self._ring.clear()
        self._reused, self._is_over = [], True
        self._setup.steps_correct = False

    def recode(self) -> None:
        self.forget()

    def tensors(self) -> Iterator[Tensor]:
        for feature in self._ring:
            yield from pytree.tree_leaves(feature.tensors)

    @property
    def _moments(self) -> list[Moment]:
        return self._setup.moments(self._ring)

    def _goes_on(self, tick: int, called: TickCalls) -> bool:
        """Whether guidance makes one velocity of the same passes as before, all of which are treated alike."""
        is_alike = called.calls == self._calls if self._ring else called.are_computed
        comparable = all(self._timetable.are_comparable(feature.tick, tick) for feature in self._ring)
        return is_alike and comparable and len(called.decisions) == 1 and self._setup.streams == 1

    def _computed(self, noise_scheduler: Any, now: Moment, call: StepCall) -> StepCall:
        """Keeps the guided velocity of a computed tick. Returns the call with one that corrects the reused ticks before it."""
        setup, velocity = self._setup, guided_velocity(self._timetable, noise_scheduler, now.tick, call)
        reused, self._reused = self._reused, []
        if reused:
            ratio = self._timetable.velocity_ratio
            own, *others = hindsight_weights(reused, now, self._moments, ratio, setup.curve)
            change = self._sum(others).add_(velocity, alpha=own)
            corrected = velocity + (trusted(change, velocity) if setup.curve.doubted else change)
            call = self._with(corrected, noise_scheduler, now.tick, call)
        setup.format.push(self._ring, now.tick, [(velocity, None)])
        setup.format.memory.end_call()
        setup.steps_correct = True
        return call

    def _sum(self, weights: Sequence[float]) -> Tensor:
        """The weighted sum of the newest guided velocities, fp32."""
        features, weights = self._setup.format.read(self._ring, weights)
        self._setup.format.memory.end_call()
        return extrapolate([kept for (kept,) in features], weights, None, torch.float32)
