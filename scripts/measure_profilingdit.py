"""What ProfilingDiT gives on the testbeds that are made of blocks, beside even reuse of the whole denoiser at equal compute.

`python scripts/measure_profilingdit.py --testbeds dit flux wan` writes evals/results/profilingdit_<testbed>.json.
"""

from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.harness.by_testbed import measure_by_testbed
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.profiling.calibrating.profilingdit import calibrate_profilingdit
from diffcache.profiling.recording.calling import frozen
from diffcache.profiling.searching.tuning import even_schedule
from diffcache.recipes.budget import BudgetConfig
from diffcache.recipes.replay import ReplayConfig

STEPS = 50


def measured(testbed: str, samples: int) -> dict[str, Any]:
    """PSNR in dB to the full run, medians over held-out samples; the calibration calls share no prompt with them."""
    pipe, half = zoo.load(testbed), samples // 2
    calls = [zoo.sample_call(testbed, seed, STEPS, half, "calibration") for seed in (1000, 2000)]
    found = calibrate_profilingdit(pipe, calls)
    cached = [site.partition(".")[2] for site in found.table if "." in site]
    every_block = found.measured["foreground"]
    ticks = round(found.measured["compute_fraction"] * STEPS)
    plain = frozen(pipe, calls[0], BudgetConfig(speedup=1))
    contenders: dict[str, CacheConfig] = {
        "ProfilingDiT": ReplayConfig(schedule=found),
        "even, held": ReplayConfig(schedule=even_schedule(plain, ticks, 0), hindsight=False),
        "even, order 1": ReplayConfig(schedule=even_schedule(plain, ticks, 1), hindsight=False),
    }
    call, rows = zoo.sample_call(testbed, 0, STEPS, samples), []
    full = render(pipe, call).pictures
    for name, config in contenders.items():
        rendered = render(pipe, call, config)
        assert rendered.report is not None
        reached = round(float(psnr(rendered.pictures, full).median()), 2)
        rows.append(
            {"name": name, "compute": round(rendered.report.compute_fraction, 3), "held_out": reached}
        )
        print(testbed, rows[-1], flush=True)
    return {"steps": STEPS, "cached": cached, "foreground": every_block, "rows": rows}


if __name__ == "__main__":
    measure_by_testbed(__doc__, "profilingdit", measured)
