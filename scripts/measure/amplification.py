"""How much denoisers amplify errors on the testbeds: the constant `LOG_AMPLIFICATION` in diffcache/noise_schedulers/influence.py.

`python scripts/measure/amplification.py --samples 4` writes evals/results/amplification/<testbed>.json.
"""

import math
from argparse import Namespace
from typing import Any

import numpy as np

from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.noise_schedulers.influence import Influence
from diffcache.noise_schedulers.levels import levels_of
from diffcache.profiling.searching.tuning import PlacedConfig

STEPS = 50
GAP = 4
"""Ticks from a computed tick to the next one."""
TICKS = (2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 45)
"""Computed ticks after which a gap is tried."""


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """What one gap in an otherwise full run does to the result, divided by its error and its influence, for each tick.

    The error of a gap is the least of the three kinds of reuse. `log_amplification` is minus the slope of the regression
    line through the logarithms, per run.
    """
    pipe, call = zoo.load(testbed), zoo.sample_call(testbed, 0, STEPS, args.samples)
    full = render(pipe, call).pictures
    pipe.scheduler.set_timesteps(STEPS)
    influence = Influence(pipe.scheduler, [level.output for level in levels_of(pipe.scheduler)])
    found = []
    for before in TICKS:
        after = before + GAP
        ticks = tuple(tick for tick in range(STEPS) if not before < tick < after)
        rendered = render(pipe, call, PlacedConfig(ticks=ticks))
        (errors,) = (by_kind for tick, _, by_kind in rendered.run_report.records[0].errors if tick == after)
        moved = float((10 ** (-psnr(rendered.pictures, full) / 20)).mean())
        ratio = influence.ratio(before, TICKS[-1])
        assert ratio is not None
        found.append(moved / (min(errors.values()) * abs(ratio)))
        print(testbed, before, f"{found[-1]:.3g}", flush=True)
    slope, _ = np.polyfit([tick / STEPS for tick in TICKS], [math.log(value) for value in found], 1)
    return {
        "steps": STEPS,
        "ticks": TICKS,
        "amplification": [float(f"{value:.3g}") for value in found],
        "log_amplification": round(-float(slope), 2),
    }


if __name__ == "__main__":
    measure_testbeds(parser_for_testbeds(__doc__), "amplification", measured)
