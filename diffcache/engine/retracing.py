"""Hindsight where predicted samples are clipped: the noise scheduler's steps are made again, from the last computed tick on."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffcache.discovery.site_names import is_inside
from diffcache.engine.choices import Choices
from diffcache.engine.observers import Observer
from diffcache.host.call import version_of
from diffcache.kernels.extrapolate import extrapolate
from diffcache.noise_schedulers.levels import SMALLEST
from diffcache.noise_schedulers.quirks import model_input
from diffcache.noise_schedulers.step_calls import StepCall, copy_of
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.prediction.predictors import Predictor
from diffcache.schedulers.moments import Moment
from diffcache.store.rings import Setup

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


class Retracing:
    """Corrects the sample of a run whose noise scheduler clips the samples that it predicts.

    A clipped step is not linear in the output, so no later output can correct an earlier one (see `hindsight_weights`). But the steps can
    be made again. Once a tick is computed, hindsight's curve gives the velocities of the reused ticks before it. A copy of the noise
    scheduler steps with these from the last computed tick, and the run goes on from where it arrives, x' instead of x. The denoiser has
    seen x, and the clean sample that it predicted there is kept:

        v' = v + cos(a) / sin(a) * (x' - x)      (a: the angle of the tick)

    Our own, with the idea of a predictor-corrector solver (UniPC, arXiv 2302.04867).

    Args:
        times: of the run.
        curve: hindsight's.

    Attributes:
        is_told: of the noise scheduler's steps, which only the loop of a pipeline or of `denoising_run` tells.
    """

    def __init__(self, times: Timetable, curve: Predictor) -> None:
        self._times, self._curve = times, curve
        self._past: deque[Computed] = deque(maxlen=curve.depth - 1)
        self._start: Start | None = None
        self._reused: list[ReusedStep] = []
        self._next: tuple[Tensor, int | None] | None = None
        self.is_told = self._has_corrected = self._was_replaced = False

    @property
    def obstacle(self) -> str | None:
        """Why nothing was corrected; None where something was, or nothing was to be corrected."""
        return REPLACED if self._was_replaced and not self._has_corrected else None

    def stepping(self, noise_scheduler: Any, tick: int, call: StepCall, *, computed: bool) -> StepCall:
        """A step is about to be made. Returns the call that is to be made instead: after reused ticks the noise scheduler, too, is as if its steps
        had been made as they are made again.

        Args:
            noise_scheduler: of the run.
            tick: of the step.
            call: of the step.
            computed: nothing was reused at the tick.
        """
        self.is_told = True
        if self._start is not None and not self._goes_on_from(call.sample):
            self.forget()
            self._was_replaced = True
        if not computed:
            self._reused.append(ReusedStep(tick, call.timestep, call.options))
            return call
        now = Computed(self._times.moment(tick), self._velocity(noise_scheduler, tick, call))
        start, reused, self._reused = self._start, self._reused, []
        if start is not None and reused and self._times.are_comparable(start.tick, tick):
            sample = self._retraced(start, reused, now)
            vars(noise_scheduler).update(vars(start.noise_scheduler))
            call = self._moved(noise_scheduler, now, call, sample)
            self._has_corrected = True
        self._past.appendleft(now)
        self._start = Start(tick, copy_of(noise_scheduler), call)
        return call

    def stepped(self, sample: Tensor) -> None:
        """The step has been made, and this is the sample after it."""
        self._next = sample, version_of(sample)

    def forget(self) -> None:
        """Drops every tensor: what comes until the next computed tick is not corrected."""
        self._past.clear()
        self._start, self._reused, self._next = None, [], None

    def tensors(self) -> Iterator[Tensor]:
        """What is kept for the cache's sake."""
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
            weights = self._curve.weights(moments, self._times.moment(tick))
            velocity = extrapolate(velocities, weights, None, torch.float32)
            call = first._replace(timestep=timestep, sample=sample, options=options)
            sample = self._with(velocity, then, tick, call).made_by(then)
        return sample

    def _moved(self, noise_scheduler: Any, now: Computed, call: StepCall, sample: Tensor) -> StepCall:
        """The call of a computed tick, at another sample and with the clean sample that the denoiser predicts."""
        moved, angle = call._replace(sample=sample), now.moment.angle or 0.0
        change = _seen(noise_scheduler, moved) - _seen(noise_scheduler, call)
        velocity = now.velocity + math.cos(angle) / max(math.sin(angle), SMALLEST) * change
        return self._with(velocity, noise_scheduler, now.moment.tick, moved)

    def _velocity(self, noise_scheduler: Any, tick: int, call: StepCall) -> Tensor:
        of_velocity, of_input = self._times.output(tick)
        return (call.output.float() - of_input * _seen(noise_scheduler, call)) / of_velocity

    def _with(self, velocity: Tensor, noise_scheduler: Any, tick: int, call: StepCall) -> StepCall:
        """A call with another velocity."""
        of_velocity, of_input = self._times.output(tick)
        output = of_velocity * velocity + of_input * _seen(noise_scheduler, call)
        return call._replace(output=output.to(call.output.dtype))


def retracing_for(choices: Choices, setup: Setup, observer: Observer) -> Retracing | None:
    """That of a denoiser in one run; None where nothing is to be corrected, or steps are linear.

    A run that is only looked at may go on with what was computed, and then nothing is to be corrected. With sites or tokens inside,
    ticks are computed in part.
    """
    influence = setup.times.influence
    clips = influence is not None and influence.clips
    in_parts = is_inside(choices.sites) or choices.rows is not None
    if not clips or not setup.hindsight or in_parts or observer.shadow:
        return None
    return Retracing(setup.times, setup.curve)


def _seen(noise_scheduler: Any, call: StepCall) -> Tensor:
    """What the denoiser sees of a step's sample, fp32."""
    return model_input(noise_scheduler, call.sample, call.timestep).float()
