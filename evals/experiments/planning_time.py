"""How long `trajectory` plans before a run: processor time, by the number of steps."""

import time
from statistics import median
from typing import Any

from diffcache.config import RunFacts
from diffcache.evals.harness.calls import call_of
from diffcache.evals.harness.facts import run_facts
from diffcache.evals.testbeds import zoo
from diffcache.recipes import run_plans
from diffcache.recipes.run_plans import course_of
from diffcache.recipes.trajectory import TrajectoryConfig

REPEATS = 5


def planning_times(testbed: str, steps: int) -> dict[str, Any]:
    """Milliseconds of processor time: for a speed-up of 3, for the default threshold, and for that speed-up with an own covariance.

    Medians of `REPEATS`. With an own covariance it takes nearly as long whatever is in it: the universal one stands for it here.
    """
    run = run_facts(zoo.load(testbed), call_of(testbed, "choose", steps, 1))
    own = TrajectoryConfig().known.process_of(course_of(run)).covariance.tolist()
    configs = {
        "speedup": TrajectoryConfig(speedup=3),
        "threshold": TrajectoryConfig(),
        "own": TrajectoryConfig(speedup=3, covariance=own),
    }
    times = {name: [_milliseconds(config, run) for _ in range(REPEATS)] for name, config in configs.items()}
    return {"steps": steps, **{name: round(median(each), 1) for name, each in times.items()}}


def _milliseconds(config: TrajectoryConfig, run: RunFacts) -> float:
    run_plans.forget()
    start = time.process_time()
    config.scheduler(run)
    config.predictor_for(run)
    return 1e3 * (time.process_time() - start)
