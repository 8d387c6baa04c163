"""Whether `speedup=` and `quality=` keep what they promise on the testbeds.

`python scripts/measure_aims.py --testbeds flux dit` writes evals/results/aims_<testbed>.json.
"""

import math
import time
from dataclasses import replace
from typing import Any

from diffcache.evals import zoo
from diffcache.evals.by_testbed import measure_by_testbed
from diffcache.evals.fidelity import psnr
from diffcache.evals.rendering import render
from diffcache.profiling.tuning import Tuner
from diffcache.recipes.budget import BudgetConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.schedule import ALL, Schedule

STEPS = 50
SPEEDUPS = (1.3, 1.5, 2.0, 2.5, 3.0, 4.0)
SHARES = (0.26, 0.4, 0.6)
"""Of the ticks, at which the calibration prompts' PSNR, rounded down, makes a target: all can be reached."""


def without_warm_up(tuner: Tuner, count: int) -> Schedule:
    """The same predictor at as many ticks, as even as it gets."""
    ticks = tuner.ticks
    computed = {round(i * (ticks - 1) / max(count - 1, 1)) for i in range(count)}
    marks = "".join("#" if tick in computed else "-" for tick in range(ticks))
    schedule = tuner.schedule(count, 1)
    return replace(schedule, table={site: {ALL: marks} for site in schedule.table})


def measured(testbed: str, samples: int) -> dict[str, Any]:
    """Of one testbed: each aim, and what came of it on held-out prompts and seeds."""
    pipe = zoo.load(testbed)
    held_out = zoo.sample_call(testbed, 0, STEPS, samples)
    begun = time.process_time()
    tuner = Tuner(pipe, [zoo.sample_call(testbed, 1000, STEPS, samples, "calibration"), held_out])
    targets = sorted({math.floor(tuner.psnr(round(share * STEPS), 1)) for share in SHARES})
    quality = []
    for target in targets:
        found = tuner.for_quality(target)
        quality.append({"target": target, "order": found.predictor["order"], **found.measured})
        print(testbed, quality[-1], flush=True)
    seconds = (time.process_time() - begun) / len(targets)
    speedup = []
    for aim in SPEEDUPS:
        rendered = render(pipe, held_out, BudgetConfig(speedup=aim))
        assert rendered.report is not None
        ticks = len(rendered.report.computed_ticks)
        even = render(pipe, held_out, ReplayConfig(schedule=without_warm_up(tuner, ticks))).pictures
        reached, uniform = (
            round(float(psnr(pictures, tuner.apart.pictures).median()), 2)
            for pictures in (rendered.pictures, even)
        )
        speedup.append({"speedup": aim, "ticks": ticks, "psnr": reached, "psnr_uniform": uniform})
        print(testbed, speedup[-1], flush=True)
    return {
        "steps": STEPS,
        "cpu_seconds_of_a_tune": round(seconds, 1),
        "quality": quality,
        "speedup": speedup,
    }


if __name__ == "__main__":
    measure_by_testbed(__doc__, "aims", measured)
