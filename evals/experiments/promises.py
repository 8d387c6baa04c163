"""Whether `tune(quality=, at_least=)` keeps its promise on prompts and seeds that it has not seen, and how much it gives away."""

import math
from itertools import pairwise
from typing import Any

from diffcache.evals.harness.calls import calls_of_testbed
from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.tuning.aim import AT_LEAST, Aim
from diffcache.profiling.tuning.engine import Task
from diffcache.profiling.tuning.parts import Parts
from diffcache.profiling.tuning.tuner import Tuner
from diffcache.recipes.trajectory import TrajectoryConfig

TESTBEDS = ("dit", "sd", "pixart", "fashion")
"""Four that are cheap, of shapes, emoji and clothes; two guide, and one predicts the noise."""

SPEEDUPS = (2.0, 1.5)
"""What `speedup=` gives to most of the samples that are chosen on, rounded down, is a target."""


def measured(testbed: str, samples: int) -> dict[str, Any]:
    """A row for each target.

    Args:
        testbed: the kernel of `trajectory` was fitted without it.
        samples: of the calibration prompts as many are chosen on, as many verified on, and a quarter as many fitted on. Twice
            as many held-out prompts and seeds are the unseen ones.
    """
    steps = zoo.STEPS.get(testbed, 50)
    with judged_on(testbed):
        tuner = _tuner(testbed, samples, steps)
        calls = calls_of_testbed(testbed, "heldout", range(2 * samples), steps, samples)
        unseen = FullRuns(tuner.task.pipe, calls)
        rows = []
        for speedup in SPEEDUPS:
            rows.append(_row(tuner, unseen, speedup))
            print(testbed, rows[-1], flush=True)
    return {"steps": steps, "at_least": AT_LEAST, "quality": rows}


def _tuner(testbed: str, samples: int, steps: int) -> Tuner:
    fitted = max(samples // 4, 1)
    ends = (0, fitted, fitted + samples, fitted + 2 * samples)
    parts = [
        calls_of_testbed(testbed, "calibration", range(begin, end), steps, samples)
        for begin, end in pairwise(ends)
    ]
    return Tuner(Task(pipe=zoo.load(testbed), calls=parts[0], ticks=steps), Parts(*parts))


def _row(tuner: Tuner, unseen: FullRuns, speedup: float) -> dict[str, Any]:
    values = tuner.judge(TrajectoryConfig(speedup=speedup)).values
    target = math.floor(float(values.quantile(1 - AT_LEAST)))
    best = tuner.for_quality(target, AT_LEAST)
    verified = tuner.verified(best, Aim(quality=target), tuner.parts.verify)["verify"]
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
