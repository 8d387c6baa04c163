"""What ProfilingDiT gives on a testbed that is made of blocks, beside even reuse of the whole denoiser at its compute."""

import math
from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.harness.calls import calibration_calls
from diffcache.evals.harness.equal_compute import Point, interpolated
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.profiling.calibrating.profilingdit import calibrate_profilingdit
from diffcache.profiling.recording.pictures import median_of
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.replay import ReplayConfig

STEPS = 50
CONTROLS = {
    "even ticks, held": EvenConfig(order=0, hindsight=False),
    "even ticks, order 1": EvenConfig(order=1, hindsight=False),
}
"""By row."""


def measured(testbed: str, samples: int) -> dict[str, Any]:
    """PSNR in dB to the full run, medians over held-out samples; the calibration calls share no prompt with them."""
    pipe = zoo.load(testbed)
    found = calibrate_profilingdit(pipe, calibration_calls(testbed, samples, STEPS))
    call = zoo.sample_call(testbed, 0, STEPS, samples)
    full = render(pipe, call).pictures

    def point(config: CacheConfig) -> Point:
        rendered = render(pipe, call, config)
        return Point(rendered.run_report.compute_fraction, median_of(psnr(rendered.pictures, full)))

    own = point(ReplayConfig(schedule=found))
    around = {math.floor(own.compute * STEPS), math.ceil(own.compute * STEPS)}
    rows = [{"name": "ProfilingDiT", "held_out": round(own.value, 2)}]
    for name, even in CONTROLS.items():
        points = [point(even.replace(speedup=STEPS / ticks)) for ticks in around]
        rows.append({"name": name, "held_out": round(interpolated(points, own.compute), 2)})
    print(testbed, own.compute, rows, flush=True)
    return {
        "steps": STEPS,
        "compute": round(own.compute, 4),
        "cached": [site.partition(".")[2] for site in found.table if "." in site],
        "foreground": found.measured["foreground"],
        "rows": rows,
    }
