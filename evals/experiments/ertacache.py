"""What each part of ERTACache gives on a testbed at equal compute, beside even ticks, EasyCache and fewer steps."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from diffcache.config import CacheConfig
from diffcache.evals.harness.calls import calibration_calls
from diffcache.evals.harness.equal_compute import Point, at_compute
from diffcache.evals.harness.fewer_steps import noise_schedulers, render_with_steps
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import splits, zoo
from diffcache.profiling.calibrating.corrections import Candidate, Corrections, candidates, chosen
from diffcache.profiling.calibrating.ertacache import policy, static_schedule
from diffcache.profiling.recording.frozen import frozen
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.pictures import median_of
from diffcache.profiling.recording.record import record
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.uniform import UniformConfig

STEPS, TICKS = 50, 26
"""Of the full run, and those that are computed: as many as holding every second tick computes."""


SHOWN = (
    "schedule",
    "+ rectification",
    "+ steps as published",
    "+ steps, over the output",
    "schedule, hindsight",
)
"""Candidates that are measured on held-out samples, with the one that the calibration keeps."""

ALONE = Corrections(rectify=False, respace=False)
"""Hindsight as the only correction."""


@dataclass(frozen=True)
class Row:
    """One way to use half of the compute; PSNR in dB to the full runs, medians over samples.

    Attributes:
        schedule: which decisions.
        name: which corrections.
        ticks: computed, of the full run's. EasyCache is interpolated to these, between its thresholds next to them.
        calibration: PSNR on the calibration calls; None where nothing was fitted to them.
        held_out: PSNR on held-out calls.
        kept: whether the calibration, which sees its own calls only, chooses these corrections for this schedule.
    """

    schedule: str
    name: str
    ticks: int
    calibration: float | None
    held_out: float
    kept: bool = False


class Ablation:
    """The ablation on one testbed.

    Args:
        testbed: of `splits.FITTING`.
        samples: calibrated on, and as many held out.

    Attributes:
        cpu_seconds: processor time of ERTACache's calibration.
    """

    def __init__(self, testbed: str, samples: int) -> None:
        self.testbed = testbed
        self.pipe = zoo.load(testbed)
        self.calls = calibration_calls(testbed, samples, STEPS)
        self.runs = FullRuns(self.pipe, self.calls)
        self.held_out = zoo.sample_call(testbed, splits.PARTS["choose"].seed, STEPS, samples)
        self.full = render(self.pipe, self.held_out).pictures
        begun = time.process_time()
        recording = record(self.pipe, self.calls)
        self.schedule = static_schedule(recording, policy(recording, TICKS / STEPS))
        self.candidates = candidates(self.runs, self.schedule)
        self.cpu_seconds = time.process_time() - begun

    def rows(self) -> Iterator[Row]:
        """All rows, one after another."""
        yield from self._compared("ERTACache", self.candidates)
        held = frozen(self.pipe, self.calls[0], UniformConfig(interval=2))
        extrapolated = frozen(self.pipe, self.calls[0], UniformConfig(interval=2, order=1, basis="output"))
        yield from self._compared("uniform hold", candidates(self.runs, held, Corrections(respace=False)))
        yield from self._compared("uniform order 1", candidates(self.runs, extrapolated, ALONE))
        yield Row("EasyCache", "", TICKS, None, round(at_compute(self._easycache, TICKS), 2))
        for name, noise_scheduler in noise_schedulers(self.pipe).items():
            pictures = render_with_steps(self.pipe, self.held_out, TICKS, noise_scheduler).pictures
            yield Row(f"{TICKS} steps, {name}", "", TICKS, None, self._psnr(pictures))

    def _compared(self, schedule: str, tried: dict[str, Candidate]) -> Iterator[Row]:
        """The candidates on the held-out samples."""
        kept = chosen(tried)
        for name in (name for name in tried if name in SHOWN or name == kept):
            candidate = tried[name]
            config = ReplayConfig(schedule=candidate.schedule)
            yield self._row(schedule, name, config, candidate.psnr, name == kept)

    def _row(
        self, schedule: str, name: str, config: CacheConfig, fitted: float | None = None, kept: bool = False
    ) -> Row:
        rendered = render(self.pipe, self.held_out, config)
        ticks = len(rendered.run_report.computed_ticks)
        return Row(schedule, name, ticks, fitted, self._psnr(rendered.pictures), kept)

    def _easycache(self, threshold: float) -> Point:
        rendered = render(self.pipe, self.held_out, EasyCacheConfig(threshold=threshold))
        return Point(len(rendered.run_report.computed_ticks), self._psnr(rendered.pictures))

    def _psnr(self, pictures: torch.Tensor) -> float:
        return round(median_of(psnr(pictures, self.full)), 2)
