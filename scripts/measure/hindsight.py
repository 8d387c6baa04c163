"""What hindsight gives: the same methods at the same settings without and with it, on the testbeds.

`python scripts/measure/hindsight.py` writes evals/results/hindsight/<testbed>.json. No testbed predicts the noise. For sd
there are rows for a network that does: the same network with its output converted.
"""

from argparse import Namespace
from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.evals.testbeds.repredicting import sd_predicting
from diffcache.recipes.builtin import DEFAULT
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.recipes.uniform import UniformConfig

STEPS = 50
METHODS: dict[str, CacheConfig] = {
    "every 2nd, held": UniformConfig(interval=2, basis="output"),
    "every 3rd, held": UniformConfig(interval=3, basis="output"),
    "every 2nd, order 1": UniformConfig(interval=2, order=1, basis="output", warmup_steps=3),
    "every 3rd, order 1": UniformConfig(interval=3, order=1, basis="output", warmup_steps=3),
    "easycache, 0.1": EasyCacheConfig(threshold=0.1),
    "default": DEFAULT,
    "default, 0.02": DEFAULT.replace(threshold=0.02),
    "speedup=2": TrajectoryConfig(speedup=2),
    "speedup=3": TrajectoryConfig(speedup=3),
}


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """PSNR in dB to the full run, medians over held-out samples."""
    found = {"steps": STEPS, "rows": compared(zoo.load(testbed), testbed, args.samples)}
    if testbed == "sd":
        found["rows_of_noise_prediction"] = compared(sd_predicting("epsilon"), testbed, args.samples)
    return found


def compared(pipe: Any, testbed: str, samples: int) -> list[dict[str, Any]]:
    """One row for each method."""
    call = zoo.sample_call(testbed, 0, STEPS, samples)
    full, rows = render(pipe, call).pictures, []
    for name, config in METHODS.items():
        row: dict[str, Any] = {"method": name}
        for key, hindsight in (("without", False), ("with", True)):
            rendered = render(pipe, call, config.replace(hindsight=hindsight))
            row[f"ticks_{key}"] = len(rendered.run_report.computed_ticks)
            row[f"psnr_{key}"] = round(float(psnr(rendered.pictures, full).median()), 2)
        rows.append(row)
        print(testbed, row, flush=True)
    return rows


if __name__ == "__main__":
    measure_testbeds(parser_for_testbeds(__doc__), "hindsight", measured)
