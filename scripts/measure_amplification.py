"""What denoisers make of errors on the testbeds: the constant `LOG_AMPLIFICATION` in diffcache/noise_schedulers/influence.py.

`python scripts/measure_amplification.py --samples 4` writes evals/results/amplification_<testbed>.json.
"""

import math
from typing import Any

import numpy as np

from diffcache.evals.harness.by_testbed import measure_by_testbed
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.noise_schedulers.influence import Influence
from diffcache.noise_schedulers.quirks import sigmas_of
from diffcache.profiling.searching.tuning import PlacedConfig

STEPS, GAP = 50, 4
PLACES = (2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 45)
"""Of the tick before the gap."""


def measured(testbed: str, samples: int) -> dict[str, Any]:
    """One gap in an otherwise full run: what it does to the result, over its error and its influence, by place.

    The least error of the three kinds of reuse is what counts; `log_amplification` is minus the slope of the regression line
    through the logarithms, per run.
    """
    pipe, call = zoo.load(testbed), zoo.sample_call(testbed, 0, STEPS, samples)
    full = render(pipe, call).pictures
    pipe.scheduler.set_timesteps(STEPS)
    influence = Influence(pipe.scheduler, sigmas_of(pipe.scheduler))
    found = []
    for place in PLACES:
        ticks = tuple(tick for tick in range(STEPS) if not place < tick < place + GAP)
        rendered = render(pipe, call, PlacedConfig(ticks=ticks))
        assert rendered.report is not None
        (errors,) = (by_kind for tick, _, by_kind in rendered.report.records[0].errors if tick == place + GAP)
        moved = float((10 ** (-psnr(rendered.pictures, full) / 20)).mean())
        reach = influence.ratio(place, PLACES[-1])
        assert reach is not None
        found.append(moved / (min(errors.values()) * abs(reach)))
        print(testbed, place, f"{found[-1]:.3g}", flush=True)
    slope, _ = np.polyfit([place / STEPS for place in PLACES], [math.log(value) for value in found], 1)
    return {
        "steps": STEPS,
        "places": PLACES,
        "amplification": [float(f"{value:.3g}") for value in found],
        "log_amplification": round(-float(slope), 2),
    }


if __name__ == "__main__":
    measure_by_testbed(__doc__, "amplification", measured)
