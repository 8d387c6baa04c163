"""The course: one testbed's full run and references, and the laps that contenders run on it."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from diffcache.evals.harness.rendering import noise_scheduler, render
from diffcache.evals.harness.rulers import rulers
from diffcache.evals.metrics.distribution import kid
from diffcache.evals.metrics.fidelity import psnr, ssim
from diffcache.evals.race.census import census
from diffcache.evals.race.contender import Contender, Track
from diffcache.evals.race.flops import counted
from diffcache.evals.testbeds import procedural, zoo
from diffcache.evals.testbeds.shape_classifier import ShapeColourClassifier

REFERENCE_STEPS = 1000
REAL_PICTURES = 512
FULL, FEWER = "full run", "fewer steps"


@dataclass(frozen=True)
class Lap:
    """One contender at one setting; medians over the samples.

    Attributes:
        name, package, knob, setting: who ran; package is "" for the plain pipeline.
        compute: floating-point operations in the denoiser, as a share of the full run's.
        psnr_full, ssim_full: against the full run, dB and 0..1.
        psnr_reference: against the plain pipeline at 1000 steps, dB.
        kid: of the testbed classifier's features, against drawn pictures (or clips' frames).
        cache_bytes: tensor memory alive half-way, beyond the full run's.
        loop_time: processor time of the denoising loop as a share of the full run's, measured in turns; None where
            not measured.
    """

    name: str
    package: str
    knob: str
    setting: float
    compute: float
    psnr_full: float
    ssim_full: float
    psnr_reference: float
    kid: float
    cache_bytes: int
    loop_time: float | None = None


@dataclass(frozen=True)
class _Run:
    pictures: Tensor
    flops: int
    live_bytes: int


class Course:
    """A testbed, its full run, and what everything is measured against.

    Args:
        name: of the testbed.
        samples: seeds, one held-out prompt each.
        steps: of the full run.
    """

    def __init__(self, name: str, samples: int, steps: int) -> None:
        self.track = Track(name, steps)
        self.samples = samples
        self.classifier = ShapeColourClassifier.load()
        self.real = self._features(_drawn(name))
        self._full = self._run()
        self._reference = self._run(steps=REFERENCE_STEPS).pictures

    def full(self) -> Lap:
        return self._lap(FULL, "", "steps", self.track.steps, self._full)

    def fewer(self, steps: int) -> Iterator[Lap]:
        """The plain pipeline with fewer steps, under its own and under multistep noise schedulers."""
        for solver in rulers(zoo.load(self.track.name)):
            run = self._run(steps=steps, solver=solver)
            yield self._lap(f"{FEWER}, {solver}", "", "steps", steps, run)

    def lap(self, contender: Contender, setting: float) -> Lap:
        """A contender at a setting, on a freshly loaded pipeline."""
        run = self._run(contender, setting)
        return self._lap(contender.name, contender.package, contender.knob, setting, run)

    def timed(self, lap: Lap, contender: Contender, rounds: int) -> Lap:
        """The same lap with its loop time: rendered in turns with the full run, nothing counted."""
        ratios = []
        for _ in range(rounds):
            plain = self._seconds()
            ratios.append(self._seconds(contender, lap.setting) / plain)
        return replace(lap, loop_time=round(float(torch.tensor(ratios).median()), 3))

    def _run(
        self,
        contender: Contender | None = None,
        setting: float = 0,
        *,
        steps: int | None = None,
        solver: str = "own",
    ) -> _Run:
        pipe = zoo.load(self.track.name)
        steps = steps or self.track.steps
        with ExitStack() as stack:
            stack.enter_context(noise_scheduler(pipe, rulers(pipe)[solver]))
            flops = stack.enter_context(counted(pipe))
            memory = stack.enter_context(census(pipe, steps // 2))
            if contender is not None:
                stack.enter_context(contender.attach(pipe, setting, self.track))
            rendered = render(pipe, self._call(steps))
        assert memory.bytes is not None
        return _Run(rendered.pictures, flops.total, memory.bytes)

    def _seconds(self, contender: Contender | None = None, setting: float = 0) -> float:
        pipe = zoo.load(self.track.name)
        with ExitStack() as stack:
            if contender is not None:
                stack.enter_context(contender.attach(pipe, setting, self.track))
            return render(pipe, self._call(self.track.steps)).cpu_seconds

    def _call(self, steps: int) -> dict[str, Any]:
        return zoo.sample_call(self.track.name, 0, steps, self.samples)

    def _lap(self, name: str, package: str, knob: str, setting: float, run: _Run) -> Lap:
        return Lap(
            name,
            package,
            knob,
            setting,
            compute=round(run.flops / self._full.flops, 4),
            psnr_full=_median(psnr(run.pictures, self._full.pictures)),
            ssim_full=_median(ssim(run.pictures, self._full.pictures)),
            psnr_reference=_median(psnr(run.pictures, self._reference)),
            kid=round(kid(self._features(run.pictures), self.real), 5),
            cache_bytes=run.live_bytes - self._full.live_bytes,
        )

    def _features(self, pictures: Tensor) -> Tensor:
        with torch.no_grad():
            features: Tensor = self.classifier(pictures.flatten(0, -4))
        return features


def _drawn(name: str) -> Tensor:
    """Pictures as the testbed was trained on, or the frames of as many clips, in 0..1."""
    if name != "wan":
        return procedural.pictures(REAL_PICTURES, seed=1).pixels
    clips = procedural.clips(REAL_PICTURES // 8, seed=1).pixels
    return clips.movedim(2, 1)


def _median(values: Tensor) -> float:
    return round(float(values.median()), 4)
