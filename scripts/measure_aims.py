"""Whether `speedup=` and `quality=` keep what they promise on the testbeds.

`python scripts/measure_aims.py --testbeds flux dit` writes evals/results/aims_<testbed>.json.
"""

import math
import time
from typing import Any

from diffcache.evals.harness.by_testbed import measure_by_testbed
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.searching.tuning import PlacedConfig, Tuner
from diffcache.recipes.budget import BudgetConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.ticks import spread

STEPS = 50
SPEEDUPS = (1.3, 1.5, 2.0, 2.5, 3.0, 4.0)
SHARES = (0.26, 0.4, 0.6)
"""Of the ticks, which evenly spread give the targets, rounded down: all can be reached."""


def measured(testbed: str, samples: int) -> dict[str, Any]:
    """Of one testbed: each aim, and what came of it on prompts and seeds that had no part in it.

    Calibrated on `samples` and verified on as many others; beside `speedup=`, as many ticks evenly spread, with hindsight like
    it, under order 1, order 2, and the choice for each tick that is its own.
    """
    pipe = zoo.load(testbed)
    begun = time.process_time()
    prompts = zoo.prompts(testbed, 2 * samples, "calibration")
    calls = [
        zoo.call_for(testbed, prompts[i : i + samples], range(1000 + i, 1000 + i + samples), STEPS)
        for i in (0, samples)
    ]
    tuner = Tuner(pipe, calls)
    unseen = FullRuns(pipe, [zoo.sample_call(testbed, 0, STEPS, samples)])
    evenly = [tuner.even(round(share * STEPS), 1) for share in SHARES]
    targets = sorted({math.floor(tuner.psnr(schedule, held_out=True)) for schedule in evenly})
    quality = []
    for target in targets:
        found = tuner.for_quality(target)
        reached = round(unseen.psnr(ReplayConfig(schedule=found)), 2)
        quality.append({"target": target, **found.measured, "psnr_unseen": reached})
        print(testbed, quality[-1], flush=True)
    seconds = (time.process_time() - begun) / len(targets)
    speedup = []
    for aim in SPEEDUPS:
        online = render(pipe, unseen.calls[0], BudgetConfig(speedup=aim))
        assert online.report is not None
        ticks = len(online.report.computed_ticks)
        even = {f"order {order}": ReplayConfig(schedule=tuner.even(ticks, order)) for order in (1, 2)}
        contenders = {**even, "own": PlacedConfig(ticks=tuple(spread(STEPS, ticks, 1)))}
        speedup.append(
            {
                "speedup": aim,
                "ticks": ticks,
                "psnr": round(float(psnr(online.pictures, unseen.pictures).median()), 2),
                "psnr_even": {name: round(unseen.psnr(config), 2) for name, config in contenders.items()},
            }
        )
        print(testbed, speedup[-1], flush=True)
    return {
        "steps": STEPS,
        "cpu_seconds_of_a_tune": round(seconds, 1),
        "quality": quality,
        "speedup": speedup,
    }


if __name__ == "__main__":
    measure_by_testbed(__doc__, "aims", measured)
