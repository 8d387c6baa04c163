"""What each part of ERTACache gives on the testbeds at equal compute, beside the methods and rulers that it has to beat.

`python scripts/ablate_ertacache.py --testbeds flux dit` writes evals/results/ertacache_<testbed>.json.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from diffcache.config import CacheConfig
from diffcache.evals.harness.by_testbed import measure_by_testbed
from diffcache.evals.harness.rendering import noise_scheduler, render
from diffcache.evals.harness.rulers import rulers
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.profiling.calibrating.corrections import Candidate, Corrections, candidates, chosen
from diffcache.profiling.calibrating.ertacache import calibrate_ertacache, policy, static_schedule
from diffcache.profiling.calibrating.threshold import calibrate_threshold
from diffcache.profiling.recording.calling import frozen
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.record import record
from diffcache.recipes.budget import BudgetConfig
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.uniform import UniformConfig

STEPS, TICKS = 50, 26
"""Of a full run, and of those the ones that are computed: what holding every second leaves."""


@dataclass(frozen=True)
class Row:
    """A contender; PSNR in dB to the full runs, medians over samples.

    Attributes:
        schedule: whose decisions.
        name: what was done to them.
        ticks: computed, of the full run's.
        calibration, held_out: PSNR on the calls of the fit (None where nothing was fitted), and on others.
        kept: the calibration, which sees its own side only, chooses this among those of the schedule.
    """

    schedule: str
    name: str
    ticks: int
    calibration: float | None
    held_out: float
    kept: bool = False


class Ablation:
    """One testbed: calibration calls on one side, held-out ones on the other."""

    def __init__(self, testbed: str, samples: int) -> None:
        self.testbed = testbed
        self.pipe = zoo.load(testbed)
        half = samples // 2
        self.calls = [zoo.sample_call(testbed, s, STEPS, half, "calibration") for s in (1000, 2000)]
        self.fitted = FullRuns(self.pipe, self.calls)
        self.held_out = zoo.sample_call(testbed, 0, STEPS, samples)
        self.full = render(self.pipe, self.held_out).pictures
        self.seconds = 0.0

    def rows(self) -> Iterator[Row]:
        """All of them, one after another."""
        compute = TICKS / STEPS
        begun = time.process_time()
        recording = record(self.pipe, self.calls)
        schedule = static_schedule(recording, policy(recording, compute))
        tried = candidates(self.fitted, schedule)
        self.seconds = time.process_time() - begun
        yield from self.compared("ERTACache", tried)
        closed = calibrate_ertacache(self.pipe, self.calls, compute, Corrections(closed=True))
        made = closed.producer["corrections"]["kept"]
        reached = closed.measured["psnr_calibration"][made]
        yield self._row("ERTACache, closed loop", made, ReplayConfig(schedule=closed), reached, True)
        held = frozen(self.pipe, self.calls[0], UniformConfig(interval=2))
        drawn = frozen(self.pipe, self.calls[0], UniformConfig(interval=2, order=1, basis="output"))
        yield from self.compared("uniform hold", candidates(self.fitted, held, Corrections(respace=False)))
        yield from self.compared("uniform order 1", candidates(self.fitted, drawn))
        yield self._row("speedup=", "hindsight", BudgetConfig(speedup=1 / compute))
        few = [zoo.sample_call(self.testbed, 1000, STEPS, 4, "calibration")]
        yield self._row("EasyCache", "", calibrate_threshold(self.pipe, few, EasyCacheConfig(), compute))
        for name, replacement in rulers(self.pipe).items():
            with noise_scheduler(self.pipe, replacement):
                pictures = render(self.pipe, {**self.held_out, "num_inference_steps": TICKS}).pictures
            yield Row(f"{TICKS} steps, {name}", "", TICKS, None, self.quality(pictures))

    def compared(self, name: str, tried: dict[str, Candidate]) -> Iterator[Row]:
        """Each on the held-out side."""
        kept = chosen(tried)
        for key, candidate in tried.items():
            yield self._row(name, key, ReplayConfig(schedule=candidate.schedule), candidate.psnr, key == kept)

    def quality(self, pictures: torch.Tensor) -> float:
        return round(float(psnr(pictures, self.full).median()), 2)

    def _row(
        self, schedule: str, name: str, config: CacheConfig, fitted: float | None = None, kept: bool = False
    ) -> Row:
        rendered = render(self.pipe, self.held_out, config)
        assert rendered.report is not None
        ticks = len(rendered.report.computed_ticks)
        return Row(schedule, name, ticks, fitted, self.quality(rendered.pictures), kept)


def measured(testbed: str, samples: int) -> dict[str, Any]:
    """Rows of one testbed, printed as they come."""
    ablation, rows = Ablation(testbed, samples), []
    for row in ablation.rows():
        print(f"{testbed}: {row}", flush=True)
        rows.append(asdict(row))
    return {
        "steps": STEPS,
        "cpu_seconds_of_calibration": round(ablation.seconds, 1),
        "rows": rows,
    }


if __name__ == "__main__":
    measure_by_testbed(__doc__, "ertacache", measured)
