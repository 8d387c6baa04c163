"""Keeps what one run's noise scheduler got: velocities after guidance, and the samples that the denoiser saw."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from torch import Tensor

from diffcache.engine.observers import Observer
from diffcache.host.guidance import guidance_in
from diffcache.host.rows import is_doubled
from diffcache.profiling.recording.calling import Call, watched_run
from diffcache.profiling.recording.guided import guided, is_conditional_first, passes
from diffcache.profiling.recording.loops import Loop
from diffcache.schedulers.errors import TargetError
from diffcache.schedulers.guidance import UNTOLD, Guidance
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Step

SECOND, SECOND_SCALE = "_2", "guidance_scale_2"
"""How the name of a second denoiser ends, and what pipelines call the scale of its guidance; without it the first one's counts."""


class NotMeasurable(TargetError):
    """The velocities of a run cannot be told: denoisers take turns, or guidance passes are not alike at all ticks."""


@dataclass
class Velocities(Observer):
    """Keeps the velocities and the samples of one run in host memory, and what its steps have made at last.

    Attributes:
        of: by branch, one velocity for each computed tick.
        samples: the denoiser's input, by tick from 1; empty where it is not known among its arguments.
        moments: by computed tick.
        denoisers: which were called, by computed tick.
        scale: of guidance, as a step has shown it where nothing tells it; None: none has.
        conditional_first: of two passes, as that step has shown it.
        stepped_from: the last tick whose step was seen; None before the first.
        result: the sample after that step.
    """

    sees_steps = True

    of: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    samples: dict[int, Tensor] = field(default_factory=dict)
    moments: dict[int, Moment] = field(default_factory=dict)
    denoisers: dict[int, set[str]] = field(default_factory=dict)
    scale: float | None = None
    conditional_first: bool = False
    stepped_from: int | None = None
    result: Tensor | None = None

    def stepping(self, tick: int, seen: Tensor, velocity: Tensor) -> None:
        self.stepped_from = tick

    def stepped(self, sample: Tensor) -> None:
        self.result = sample.clone()

    def guided(self, scale: float, *, conditional_first: bool) -> None:
        self.scale, self.conditional_first = scale, conditional_first

    def called(self, denoiser: str, step: Step, latents: Sequence[Tensor]) -> None:
        if latents:
            self.samples.setdefault(step.tick, latents[0].float().cpu().clone())

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor], stream: int
    ) -> None:
        self.of.setdefault(step.branch, {})[step.tick] = features[0].float().cpu()
        self.moments[step.tick] = step.moment
        self.denoisers.setdefault(step.tick, set()).add(denoiser)


class Followed(Velocities):
    """Keeps those of a run that reuses, as the denoiser would have given them at reused ticks, too; its steps are not looked at."""

    shadow = True
    closed = True
    sees_steps = False


@dataclass(frozen=True)
class Trajectory:
    """What one run's denoiser got and returned.

    Attributes:
        passes: the velocities of each guidance pass at each tick, [samples, ...], the conditional one first.
        guidance: at each tick.
        samples: the denoiser's input at each tick from 1, [samples, ...]; empty where it is not known.
        moments: of the ticks.
        handovers: the ticks at which another denoiser takes over.
        result: the sample after the last step, [samples, ...]; None where that step was not seen.
    """

    passes: list[tuple[Tensor, ...]]
    guidance: list[Guidance]
    samples: dict[int, Tensor]
    moments: tuple[Moment, ...]
    handovers: tuple[int, ...] = ()
    result: Tensor | None = None

    @property
    def velocities(self) -> list[tuple[Tensor, ...]]:
        """What the noise scheduler got at each tick: one tensor, or one for each guidance pass if these are not two."""
        return [guided(*tick) for tick in zip(self.passes, self.guidance, strict=True)]

    @property
    def amplification(self) -> float:
        """By guidance, as the first tick shows it (see `Guidance`); the usual one where it shows none."""
        first, guidance = self.passes[0], self.guidance[0]
        if len(first) != 2 or first[0].shape != first[1].shape or not self.moments[0].is_pure_noise:
            return guidance.amplification
        c, u = (one.double() for one in first)
        return guidance.showing(*(float((a * b).mean()) for a, b in ((c, c), (u, u), (c, u)))).amplification


def trajectory_of(pipe: Any, call: Call, seen: Velocities) -> Trajectory:
    """That of one call of an accelerated pipeline. A learned variance is left out.

    Args:
        pipe: an accelerated pipeline, whose method stores velocities.
        call: its arguments.
        seen: keeps them; a new one.

    Raises:
        NotMeasurable: denoisers take turns, or no guidance pass is called at every tick.
        TargetError: the call has no denoising loop or several.
    """
    record = watched_run(pipe, call, seen)
    latents = next(iter(record.models.values())).latents
    ticks = sorted(seen.moments)
    handovers = tuple(tick for one, tick in pairwise(ticks) if seen.denoisers[one] != seen.denoisers[tick])
    if len(handovers) >= len(record.models) or any(len(of) > 1 for of in seen.denoisers.values()):
        raise NotMeasurable(
            "the covariance of several denoisers can be measured where each takes over from another once; here they take turns."
        )
    whole = {branch: outputs for branch, outputs in seen.of.items() if outputs.keys() == seen.moments.keys()}
    if not whole:
        raise NotMeasurable("no guidance pass is called at every tick: nothing can be measured here.")
    told, given = UNTOLD if isinstance(pipe, Loop) else guidance_in(pipe, call), call.get(SECOND_SCALE)
    one = replace(told, scale=told.scale or seen.scale or 1.0)
    other = one if given is None else replace(one, scale=float(given))
    guidance = [
        other if any(name.endswith(SECOND) for name in seen.denoisers[tick]) else one for tick in ticks
    ]
    doubled = (
        max(of.counted for of in guidance) > 1
        and bool(seen.samples)
        and all(map(is_doubled, seen.samples.values()))
    )
    if isinstance(pipe, Loop) and seen.scale is None and len(whole) == 2:
        raise NotMeasurable(
            "the loop's steps do not show how its two guidance passes are combined: name its noise scheduler, denoising_run(..., noise_scheduler=)."
        )
    first = is_conditional_first(pipe) if seen.scale is None else seen.conditional_first
    found = []
    for tick in ticks:
        outputs = {
            branch: without_variance(of[tick], latents[0] if latents else ()) for branch, of in whole.items()
        }
        found.append(passes(outputs, doubled, first, in_order=seen.scale is not None))
    samples = {tick: sample.chunk(2)[0] if doubled else sample for tick, sample in seen.samples.items()}
    moments = tuple(seen.moments[tick] for tick in ticks)
    result = seen.result if seen.stepped_from == ticks[-1] else None
    return Trajectory(found, guidance, samples, moments, handovers, result)


def without_variance(output: Tensor, latent: Sequence[int]) -> Tensor:
    """The part of an output [batch, ...] that is as large as the latent, whose shape has no batch."""
    for dim, size in enumerate(latent, start=1):
        if dim < output.ndim and output.shape[dim] > size:
            output = output.narrow(dim, 0, size)
    return output
