"""Hindsight where predicted samples are clipped: the noise scheduler's steps are made again, from the last computed tick on."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffcache.engine.step_correction import StepCorrection, denoiser_input, guided_velocity
from diffcache.host.call import version_of
from diffcache.kernels.extrapolate import extrapolate
from diffcache.noise_schedulers.levels import SMALLEST
from diffcache.noise_schedulers.step_calls import StepCall, copy_of
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.reports.records import TickCalls
from diffcache.schedulers.moments import Moment, signal_and_noise
from diffcache.store.rings import StoreSetup

REPLACED = "the latents are replaced between the noise scheduler's steps"


class Computed(NamedTuple):
    """The guided velocity of a computed tick, fp32."""

    moment: Moment
    velocity: Tensor


class Start(NamedTuple):
    """The step of the last computed tick, and a copy of the noise scheduler from before it."""

    tick: int
    noise_scheduler: Any
    call: StepCall


class ReusedStep(NamedTuple):
    """What is kept of the step of a reused tick."""

    tick: int
    timestep: Any
    options: Mapping[str, Any]


class Retracing(StepCorrection):
    """Corrects the sample of a run whose noise scheduler clips the samples that it predicts.

    A clipped step is not linear in the output, so no later output can correct an earlier one (see `hindsight_weights`). But the steps can
    be made again. Once a tick is computed, hindsight's curve gives the velocities of the reused ticks before it. A copy of the noise
    scheduler steps with these from the last computed tick, and the run goes on from where it arrives, x' instead of x. The denoiser has
    seen x, and the clean sample that it predicted there is kept:

        v' = v + (x' - x) / s      (s: how much noise the sample holds)

    Our own, with the idea of a predictor-corrector solver (UniPC, arXiv 2302.04867).

    Args:
        timetable: of the run.
        setup: of the denoiser; its curve gives the weights.
    """

    def __init__(self, timetable: Timetable, setup: StoreSetup) -> None:
        super().__init__(timetable)
        self._setup = setup
        self._past: deque[Computed] = deque(maxlen=setup.curve.depth - 1)
        self._start: Start | None = None
        self._reused: list[ReusedStep] = []
        self._next: tuple[Tensor, int | None] | None = None
        self._has_corrected = self._was_replaced = False

    @property
    def obstacle(self) -> str | None:
        return REPLACED if self._was_replaced and not self._has_corrected else None

    def stepping(self, noise_scheduler: Any, tick: int, call: StepCall, called: TickCalls) -> StepCall:
        """After reused ticks the noise scheduler, too, is as if its steps had been made as they are made again."""
        self.has_seen_steps = True
        if self._start is not None and not self._goes_on_from(call.sample):
            self.forget()
            self._was_replaced = True
        if not called.are_computed:
            self._reused.append(ReusedStep(tick, call.timestep, call.options))
            return call
        now = Computed(
            self._timetable.moment(tick), guided_velocity(self._timetable, noise_scheduler, tick, call)
        )
        start, reused, self._reused = self._start, self._reused, []
        if start is not None and reused and self._timetable.are_comparable(start.tick, tick):
            sample = self._retraced(start, reused, now)
            vars(noise_scheduler).update(vars(start.noise_scheduler))
            call = self._moved(noise_scheduler, now, call, sample)
            self._has_corrected = True
        self._past.appendleft(now)
        self._start = Start(tick, copy_of(noise_scheduler), call)
        return call

    def stepped(self, sample: Tensor) -> None:
        self._next = sample, version_of(sample)

    def forget(self) -> None:
        self._past.clear()
        self._start, self._reused, self._next = None, [], None

    def tensors(self) -> Iterator[Tensor]:
        yield from (computed.velocity for computed in self._past)
        if self._start is not None:
            yield from (self._start.call.sample, self._start.call.output)

    def _goes_on_from(self, sample: Tensor) -> bool:
        """Whether it is what the last step returned, and has not been written to."""
        return self._next is not None and sample is self._next[0] and version_of(sample) == self._next[1]

    def _retraced(self, start: Start, reused: Sequence[ReusedStep], now: Computed) -> Tensor:
        """The sample after the steps from a computed tick on, made again by the copy of the noise scheduler."""
        _, then, first = start
        moments, velocities = zip(now, *self._past, strict=True)
        sample = first.made_by(then)
        for tick, timestep, options in reused:
            weights = self._setup.curve.weights(moments, self._timetable.moment(tick))
            velocity = extrapolate(velocities, weights, None, torch.float32)
            call = first._replace(timestep=timestep, sample=sample, options=options)
            sample = self._with(velocity, then, tick, call).made_by(then)
        return sample

    def _moved(self, noise_scheduler: Any, now: Computed, call: StepCall, sample: Tensor) -> StepCall:
        """The call of a computed tick, at another sample and with the clean sample that the denoiser predicts."""
        moved = call._replace(sample=sample)
        change = denoiser_input(noise_scheduler, moved) - denoiser_input(noise_scheduler, call)
        _, noise = signal_and_noise(now.moment.angle or 0.0, now.moment.is_flow)
        velocity = now.velocity + change / max(noise, SMALLEST)
        return self._with(velocity, noise_scheduler, now.moment.tick, moved)
