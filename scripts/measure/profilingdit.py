"""What ProfilingDiT gives on the testbeds that are made of blocks, beside even reuse of the whole denoiser at equal compute.

`python scripts/measure/profilingdit.py --testbeds dit flux wan` writes evals/results/profilingdit/<testbed>.json.
"""

from argparse import Namespace
from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.harness.calls import calibration_calls
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.profiling.calibrating.profilingdit import calibrate_profilingdit
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.replay import ReplayConfig

STEPS = 50


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """PSNR in dB to the full run, medians over held-out samples; the calibration calls share no prompt with them."""
    pipe = zoo.load(testbed)
    calls = calibration_calls(testbed, args.samples, STEPS)
    found = calibrate_profilingdit(pipe, calls)
    ticks = round(found.measured["compute_fraction"] * STEPS)
    methods: dict[str, CacheConfig] = {
        "ProfilingDiT": ReplayConfig(schedule=found),
        "even, held": EvenConfig(speedup=STEPS / ticks, order=0, hindsight=False),
        "even, order 1": EvenConfig(speedup=STEPS / ticks, hindsight=False),
    }
    call, rows = zoo.sample_call(testbed, 0, STEPS, args.samples), []
    full = render(pipe, call).pictures
    for name, config in methods.items():
        rendered = render(pipe, call, config)
        compute = round(rendered.run_report.compute_fraction, 3)
        reached = round(float(psnr(rendered.pictures, full).median()), 2)
        rows.append({"name": name, "compute": compute, "held_out": reached})
        print(testbed, rows[-1], flush=True)
    return {
        "steps": STEPS,
        "cached": [site.partition(".")[2] for site in found.table if "." in site],
        "foreground": found.measured["foreground"],
        "rows": rows,
    }


if __name__ == "__main__":
    measure_testbeds(parser_for_testbeds(__doc__), "profilingdit", measured)
