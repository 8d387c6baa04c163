"""How far the expected error of a speed-up is from the measured one, and how much nearer it would be if more were known of the pipeline."""

from collections.abc import Iterator
from typing import Any

from diffcache.config import RunFacts
from diffcache.evals.experiments.trajectory import SPEEDUPS, engine_on, pictures
from diffcache.evals.experiments.trajectory_prior import SAMPLES
from diffcache.evals.harness.facts import run_facts
from diffcache.evals.harness.unseen import judged_on
from diffcache.prediction.hindsight import LARGEST_RATIO
from diffcache.recipes.run_plans import course_of
from diffcache.recipes.trajectory import TrajectoryConfig


def compared(testbed: str, steps: int, samples: int) -> Iterator[dict[str, Any]]:
    """For each speed-up the measured error of its plan, and the expected one by what is known; all of the same plan.

    "surprise" is by how much predictions were worse in the run than expected; the report multiplies what it expects by it.
    """
    shown = pictures(testbed, steps, samples, "choose")
    engine = engine_on(pictures(testbed, steps, SAMPLES, "covariance"))
    covariance, response = engine.covariances[0], engine.response
    run = run_facts(shown.pipe, shown.call(steps))
    for speedup in SPEEDUPS:
        with judged_on(testbed):
            config = TrajectoryConfig(speedup=speedup)
            found = shown.method(config)
            known = {
                "prior": config,
                "response": config.replace(response=response),
                "covariance": config.replace(covariance=covariance),
                "both": config.replace(response=response, covariance=covariance),
            }
            expected = {name: expected_error(config, each, run) for name, each in known.items()}
        told = found.report.expected_error
        yield {
            "steps": steps,
            "ticks": len(found.report.computed_ticks),
            "measured": round(shown.median_error(found), 5),
            "surprise": round(told / expected["prior"], 3) if told else 1.0,
            "expected": {name: round(error, 5) for name, error in expected.items()},
        }


def expected_error(config: TrajectoryConfig, known: TrajectoryConfig, run: RunFacts) -> float:
    """Of the plan of one config and its predictions, by what another one knows."""
    plan, course = config.plan(run, config.speedup or 1), course_of(run)
    true, predicted = (
        each.known.error_models(course, LARGEST_RATIO)(plan.caution, plan.corrects)
        for each in (known, config)
    )
    return true.likely(plan.ticks, predicted)
