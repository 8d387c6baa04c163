"""How good plans are by what was measured of the pipeline: at every number of computed ticks, without drawing a picture for each."""

import math
from collections.abc import Iterator
from typing import Any

from diffcache.evals.experiments.expected_errors import expected_error
from diffcache.evals.experiments.trajectory import engine_on, pictures
from diffcache.evals.experiments.trajectory_prior import SAMPLES
from diffcache.evals.harness.facts import run_facts
from diffcache.evals.harness.unseen import judged_on
from diffcache.prediction.hindsight import LARGEST_RATIO
from diffcache.recipes.budgeted import evenly
from diffcache.recipes.run_plans import course_of
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.trajectory.plan import CAUTIONS

FEWEST, MOST = 0.16, 0.76
"""Of the ticks of a run."""


def planned(testbed: str, steps: int) -> Iterator[dict[str, Any]]:
    """For each number of computed ticks how far below the velocities, in dB, errors of the result are expected with its own covariance and response.

    "prior": of the plan with the universal ones, "own" of the plan with its own, and "even" of evenly spaced ticks, where the best of
    `CAUTIONS` predicts.
    """
    fitted = pictures(testbed, steps, SAMPLES, "covariance")
    engine = engine_on(fitted)
    covariance, response = engine.covariances[0], engine.response
    run = run_facts(fitted.pipe, fitted.call(steps))
    course = course_of(run)
    for ticks in range(math.ceil(FEWEST * steps), int(MOST * steps) + 1):
        with judged_on(testbed):
            prior = TrajectoryConfig(speedup=steps / ticks)
            own = prior.replace(response=response, covariance=covariance)
            even = evenly(steps, ticks, prior.guards(run))
            truth, taken = (each.known.error_models(course, LARGEST_RATIO) for each in (own, prior))
            errors = {
                "even": min(truth(caution, True).likely(even, taken(caution, True)) for caution in CAUTIONS),
                "prior": expected_error(prior, own, run),
                "own": expected_error(own, own, run),
            }
        yield {
            "steps": steps,
            "ticks": ticks,
            **{name: round(-20 * math.log10(e), 2) for name, e in errors.items()},
        }
