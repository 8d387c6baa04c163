"""Whether `tune(quality=, at_least=)` keeps its promise on prompts and seeds that it has not seen, and how much it gives away.

`python scripts/measure/promises.py --testbeds pixart` writes evals/results/promises/<testbed>.json.
"""

import math
from argparse import Namespace
from itertools import pairwise
from typing import Any

from diffcache.evals.harness.calls import calls_of_testbed
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds
from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.tuning.engine import Task
from diffcache.profiling.tuning.parts import Parts
from diffcache.profiling.tuning.tuner import Tuner
from diffcache.recipes.even import EvenConfig

SHARES = (0.3, 0.5)
"""Of the ticks. What so many evenly spaced ticks give to most samples, rounded down, is a target: it can be reached."""

AT_LEAST = 0.9
"""Of the samples must keep a target."""


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """A row for each target.

    Of the calibration prompts `--samples` are chosen on and as many verified on; a quarter as many are fitted on. The kernel was
    fitted without this testbed. The unseen prompts and seeds are the held-out ones.
    """
    steps = zoo.STEPS.get(testbed, 50)
    with judged_on(testbed):
        tuner = _tuner(testbed, args.samples, steps)
        unseen = FullRuns(
            tuner.task.pipe,
            calls_of_testbed(testbed, "heldout", range(2 * args.samples), steps, args.samples),
        )
        rows = []
        for share in SHARES:
            rows.append(_row(tuner, unseen, share))
            print(rows[-1], flush=True)
    return {"steps": steps, "at_least": AT_LEAST, "quality": rows}


def _tuner(testbed: str, samples: int, steps: int) -> Tuner:
    ends = (0, max(samples // 4, 1), max(samples // 4, 1) + samples, max(samples // 4, 1) + 2 * samples)
    parts = [
        calls_of_testbed(testbed, "calibration", range(begin, end), steps, samples)
        for begin, end in pairwise(ends)
    ]
    return Tuner(Task(pipe=zoo.load(testbed), calls=parts[0], ticks=steps), Parts(*parts))


def _row(tuner: Tuner, unseen: FullRuns, share: float) -> dict[str, Any]:
    values = tuner.judge(EvenConfig(speedup=1 / share)).values
    target = math.floor(float(values.quantile(1 - AT_LEAST)))
    best = tuner.for_quality(target, AT_LEAST)
    verified = tuner.verified(best, {"quality": target, "at_least": AT_LEAST})["verify"]
    reached = unseen.measures(best.config)
    return {
        "target": target,
        "compute": best.compute,
        "kept_where_chosen": round(float((best.values >= target).double().mean()), 4),
        "kept_where_verified": round(verified["kept"] / verified["samples"], 4),
        "bound": verified["least share that keeps it"],
        "kept_unseen": round(float((reached >= target).double().mean()), 4),
        "given_away": round(float(reached.quantile(1 - AT_LEAST)) - target, 2),
    }


if __name__ == "__main__":
    measure_testbeds(parser_for_testbeds(__doc__, samples=32, names=zoo.ALL), "promises", measured)
