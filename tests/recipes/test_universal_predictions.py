"""The method `trajectory` with ticks of the pipeline's own covariance, and predictions with the universal one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from zoo.pipelines import CASES

from diffcache import CacheConfig, Schedule, accelerate, report
from diffcache.config import RunFacts
from diffcache.prediction.hindsight import LARGEST_RATIO
from diffcache.prediction.predictors import Conditional
from diffcache.recipes.run_plans import course_of
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.moments import Moment
from diffcache.trajectory.error_model import WINDOW
from diffcache.trajectory.gaussian import conditional_weights

FLUX = CASES["FluxPipeline"]
STEPS, SPEEDUP = 20, 2.5
RUN = RunFacts(
    "Net",
    num_ticks=STEPS,
    moments=tuple(Moment(i, None, float(np.arctan2(1 - i / STEPS, i / STEPS))) for i in range(STEPS)),
    influence=tuple((-1 / STEPS,) * tick + (0.0,) * (STEPS - tick) for tick in range(STEPS + 1)),
)
PLACES = np.linspace(0, 2, STEPS) ** 2
"""Outputs change most at the end."""
MEASURED = np.exp(-((PLACES[:, None] - PLACES[None, :]) ** 2)) + 1e-4 * np.eye(STEPS)

UNIVERSAL = TrajectoryConfig(speedup=SPEEDUP)
OWN = UNIVERSAL.replace(covariance=MEASURED.tolist())
MIXED = OWN.replace(predicts_with="universal")


def test_ticks_are_of_the_measured_covariance_and_predictions_of_the_universal_one() -> None:
    plans = [config.plan(RUN, SPEEDUP) for config in (UNIVERSAL, OWN, MIXED)]
    assert plans[2].ticks == plans[1].ticks != plans[0].ticks
    assert plans[2].caution == plans[0].caution
    of_universal, of_own, of_mixed = (config.predictor_for(RUN) for config in (UNIVERSAL, OWN, MIXED))
    assert isinstance(of_universal, Conditional)
    assert isinstance(of_own, Conditional)
    assert isinstance(of_mixed, Conditional)
    np.testing.assert_array_equal(of_mixed.believed, of_universal.believed)
    np.testing.assert_array_equal(of_mixed.covariance, of_own.covariance)
    assert of_mixed.noise == of_universal.noise
    assert of_mixed.measured is not None  # other runs can be planned anew with what was measured
    assert of_mixed.measured.angles == tuple(moment.angle for moment in RUN.moments)


def test_the_expected_error_is_that_of_these_predictions_by_the_measured_covariance() -> None:
    plan, course = MIXED.plan(RUN, SPEEDUP), course_of(RUN)
    process = UNIVERSAL.known.process_of(course)
    errors = MIXED.known.error_models(course, LARGEST_RATIO)(plan.caution, True)
    weights = errors.weights(plan.ticks)
    for tick in set(range(STEPS)) - {*plan.ticks}:
        newest = [i for i, computed in enumerate(plan.ticks) if computed < tick][-WINDOW:]
        known = [plan.ticks[i] for i in newest]
        expected = conditional_weights(
            process.believed(plan.caution.roughness), known, [tick], plan.caution.noise
        )
        np.testing.assert_allclose(weights[tick, newest], expected[:, 0], atol=1e-9)
    with_own = OWN.known.error_models(course, LARGEST_RATIO)(plan.caution, True)
    assert plan.expected == pytest.approx(with_own.likely(plan.ticks, errors))
    assert plan.expected != pytest.approx(with_own.likely(plan.ticks), rel=1e-3)
    corrected = with_own.weights(plan.ticks)[list(plan.ticks)]
    assert not np.allclose(weights[list(plan.ticks)], corrected)  # corrections make good other predictions


def test_a_schedule_replays_it_to_the_bit(tmp_path: Path) -> None:
    pipe = accelerate(FLUX.build(), MIXED)
    picture = FLUX.render(pipe, 0, STEPS)
    schedule = Schedule.from_pretrained(report(pipe).to_schedule().save_pretrained(tmp_path))
    accelerate(pipe, schedule)
    assert torch.equal(FLUX.render(pipe, 0, STEPS), picture)
    accelerate(pipe, OWN)
    assert not torch.equal(FLUX.render(pipe, 0, STEPS), picture)


def test_without_a_covariance_there_is_one_prediction_only() -> None:
    mixed = UNIVERSAL.replace(predicts_with="universal")
    assert mixed.plan(RUN, SPEEDUP) == UNIVERSAL.plan(RUN, SPEEDUP)
    assert mixed.predictor_for(RUN).describe() == UNIVERSAL.predictor_for(RUN).describe()


def test_it_is_saved_with_the_config_and_is_one_of_two(tmp_path: Path) -> None:
    config = TrajectoryConfig(speedup=2, predicts_with="universal")
    assert CacheConfig.from_pretrained(config.save_pretrained(tmp_path)) == config
    with pytest.raises(ConfigError, match="predicts_with"):
        TrajectoryConfig(predicts_with="both")
