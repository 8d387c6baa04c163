"""Whether `speedup=` and `quality=` reach their targets on the testbeds.

`python scripts/measure/targets.py --testbeds flux dit` writes evals/results/targets/<testbed>.json.
"""

import math
import time
from argparse import Namespace
from typing import Any

from diffcache.evals.harness.calls import calls_of_testbed
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.searching.tuning import Tuner
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.trajectory import TrajectoryConfig

STEPS = 50
SPEEDUPS = (1.3, 1.5, 2.0, 2.5, 3.0, 4.0)
SHARES = (0.26, 0.4, 0.6)
"""Of the ticks. The PSNR that so many evenly spread ticks give, rounded down, is a target: it can be reached."""


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """Each target, and what is reached on prompts and seeds that had no part in the search.

    Calibrated on `--samples` samples, and verified on as many others.
    """
    begun = time.process_time()
    calls = calls_of_testbed(testbed, "calibration", range(2 * args.samples), STEPS, batch=args.samples)
    tuner = Tuner(zoo.load(testbed), calls)
    unseen = FullRuns(tuner.seen.pipe, calls_of_testbed(testbed, "heldout", range(args.samples), STEPS))
    quality = of_quality(tuner, unseen)
    seconds = (time.process_time() - begun) / len(quality)
    return {
        "steps": STEPS,
        "cpu_seconds_of_a_tune": round(seconds, 1),
        "quality": quality,
        "speedup": of_speedup(tuner, unseen),
    }


def of_quality(tuner: Tuner, unseen: FullRuns) -> list[dict[str, Any]]:
    """A row for each `quality=`."""
    evenly = [tuner.even(round(share * STEPS), 1) for share in SHARES]
    targets = sorted({math.floor(tuner.psnr(schedule, held_out=True)) for schedule in evenly})
    rows = []
    for target in targets:
        schedule = tuner.for_quality(target)
        reached = round(unseen.psnr(ReplayConfig(schedule=schedule)), 2)
        rows.append({"target": target, **schedule.measured, "psnr_unseen": reached})
        print(rows[-1], flush=True)
    return rows


def of_speedup(tuner: Tuner, unseen: FullRuns) -> list[dict[str, Any]]:
    """A row for each `speedup=`, beside as many evenly spread ticks with hindsight.

    These are extrapolated with order 1 and with order 2.
    """
    rows = []
    for speedup in SPEEDUPS:
        online = render(unseen.pipe, unseen.calls[0], TrajectoryConfig(speedup=speedup))
        ticks = len(online.run_report.computed_ticks)
        methods = {f"order {order}": EvenConfig(speedup=STEPS / ticks, order=order) for order in (1, 2)}
        rows.append(
            {
                "speedup": speedup,
                "ticks": ticks,
                "psnr": round(float(psnr(online.pictures, unseen.pictures).median()), 2),
                "psnr_even": {name: round(unseen.psnr(config), 2) for name, config in methods.items()},
            }
        )
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    measure_testbeds(parser_for_testbeds(__doc__), "targets", measured)
