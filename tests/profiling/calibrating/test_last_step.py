"""The weights of a last step's correction are those of a regression, and bring runs nearer to the full one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import DPMSolverMultistepScheduler
from support.searches.flux_calls import FLUX, flux_calls
from torch import Tensor
from zoo.pipelines import CASES

from diffcache import Schedule, accelerate, report
from diffcache.engine.observers import Observer
from diffcache.profiling.calibrating import last_step
from diffcache.profiling.calibrating.corrections import with_corrections
from diffcache.profiling.calibrating.last_step import RIDGE, with_last_step
from diffcache.profiling.recording.calling import Call, accelerated, watched_run
from diffcache.profiling.recording.frozen import frozen
from diffcache.profiling.recording.journal import Entry
from diffcache.profiling.recording.trajectories import full_trajectories
from diffcache.profiling.tuning.engine import Task
from diffcache.profiling.tuning.judged import Judged
from diffcache.profiling.tuning.parts import three_parts
from diffcache.profiling.tuning.tuner import Tuner
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.schedule_fields import LAST_STEP
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.schedule import EXPECTED_ERROR, INFLUENCE

STEPS = 12
FULL = UniformConfig(interval=1)


class Steps(Observer):
    """What the steps of a run got, and the sample after the last one."""

    sees_steps = True

    def __init__(self) -> None:
        self.seen: list[Tensor] = []
        self.velocities: list[Tensor] = []
        self.result = torch.zeros(())

    def stepping(self, tick: int, seen: Tensor, velocity: Tensor) -> None:
        self.seen.append(seen)
        self.velocities.append(velocity)

    def stepped(self, sample: Tensor) -> None:
        self.result = sample.clone()


def steps_of(pipe: object, config: UniformConfig | ReplayConfig, call: Call) -> Steps:
    steps = Steps()
    with accelerated(pipe, config):
        watched_run(pipe, call, steps)
    return steps


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return frozen(FLUX.build(), FLUX.call(0, STEPS), EvenConfig(speedup=3, order=1, hindsight=False))


def test_weights_are_those_of_a_regression_in_which_each_sample_counts_alike(schedule: Schedule) -> None:
    pipe, calls = FLUX.build(), [{**call, "num_images_per_prompt": 2} for call in flux_calls(STEPS, 2)]
    found = with_last_step(pipe, calls, schedule)
    assert found is not None
    rows, wanted = [], []
    for call in calls:
        run = steps_of(pipe, ReplayConfig(schedule=schedule), call)
        missed = steps_of(pipe, FULL, call).result - run.result
        kept = [run.seen[0], *(run.velocities[tick] for tick in schedule.computed_ticks)]
        for i, own in enumerate(missed):
            rows.append(torch.stack([one[i].flatten() for one in kept], dim=1) / own.norm())
            wanted.append(own.flatten() / own.norm())
    matrix, target = torch.cat(rows).double().numpy(), torch.cat(wanted).double().numpy()
    square = matrix.T @ matrix
    penalty = RIDGE * square.diagonal().mean() * np.eye(len(square))
    weights = found.corrections[LAST_STEP]
    used = [0, *(1 + tick for tick in schedule.computed_ticks)]
    np.testing.assert_allclose(
        weights[used], np.linalg.solve(square + penalty, matrix.T @ target), rtol=1e-3, atol=1e-5
    )
    others = [i for i in range(1 + STEPS) if i not in used]
    assert not weights[others].any()


def test_results_come_nearer_to_the_full_runs(schedule: Schedule) -> None:
    pipe, calls = FLUX.build(), flux_calls(STEPS, 3)
    corrected = with_last_step(pipe, calls, schedule)
    assert corrected is not None
    errors = []
    for one in (schedule, corrected):
        missed = [
            steps_of(pipe, FULL, call).result - steps_of(pipe, ReplayConfig(schedule=one), call).result
            for call in calls
        ]
        errors.append(float(torch.stack(missed).norm()))
    assert errors[1] < 0.9 * errors[0]


def test_weights_that_a_schedule_has_are_fitted_anew(schedule: Schedule) -> None:
    """Not on top of them."""
    pipe, calls = FLUX.build(), flux_calls(STEPS, 1)
    once = with_last_step(pipe, calls, schedule)
    assert once is not None
    assert with_last_step(pipe, calls, once) == once


def test_results_that_are_not_finite_give_no_weights(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, calls = FLUX.build(), flux_calls(STEPS, 1)
    (full,) = full_trajectories(pipe, calls)
    broken = Entry({"result": full.tensors["result"] * float("nan")}, {})
    monkeypatch.setattr(last_step, "full_trajectories", lambda *_: [broken])
    assert with_last_step(pipe, calls, schedule) is None


def test_other_options_of_the_noise_scheduler_are_noticed_without_hindsight_too() -> None:
    case = CASES["StableDiffusionPipeline"]
    pipe, call = case.build(), case.call(0, STEPS)
    pipe.scheduler = DPMSolverMultistepScheduler.from_config(pipe.scheduler.config)
    made = frozen(pipe, call, EvenConfig(speedup=3, order=0, hindsight=False))
    assert INFLUENCE not in made.predictor
    corrected = with_last_step(pipe, [call], made)
    assert corrected is not None
    for order, applied in ((2, [LAST_STEP]), (1, [])):
        pipe.scheduler = DPMSolverMultistepScheduler.from_config(pipe.scheduler.config, solver_order=order)
        accelerate(pipe, corrected)
        case.render(pipe, 0, STEPS)
        assert [*report(pipe).records[-1].corrections] == applied
        assert any(
            "other options of DPMSolverMultistepScheduler" in note for note in report(pipe).notes
        ) is not bool(applied)


def test_two_denoisers_have_none() -> None:
    case = CASES["WanPipeline-two-experts"]
    pipe, call = case.build(), case.call(0, STEPS)
    made = frozen(pipe, call, EvenConfig(speedup=2))
    assert with_last_step(pipe, [call], made) is None
    assert "result" not in full_trajectories(pipe, [call])[0].tensors


def test_a_schedule_that_computes_everything_misses_nothing() -> None:
    pipe, call = FLUX.build(), FLUX.call(0, STEPS)
    assert with_last_step(pipe, [call], frozen(pipe, call, FULL)) is None


def test_tune_takes_the_correction_where_it_is_better_and_expects_what_it_measures() -> None:
    parts = three_parts(flux_calls(STEPS, 5), 1)
    tuner = Tuner(Task(pipe=FLUX.build(), calls=parts.fit, ticks=STEPS), parts)
    best = tuner.for_compute(1 / 3)
    assert isinstance(best.config, ReplayConfig)
    assert LAST_STEP in best.config.schedule.corrections
    before = tuner.judge(ReplayConfig(schedule=with_corrections(best.config.schedule, {})))
    assert best.mean > before.mean
    assert best.compute == before.compute
    assert best.config.schedule.measured[EXPECTED_ERROR] < _expected(before)


def test_one_call_does_not_show_whether_a_correction_helps_on_others() -> None:
    parts = three_parts(flux_calls(STEPS, 1), 1)
    best = Tuner(Task(pipe=FLUX.build(), calls=parts.fit, ticks=STEPS), parts).for_compute(1 / 3)
    assert isinstance(best.config, ReplayConfig)
    assert not best.config.schedule.corrections


def _expected(judged: Judged) -> float:
    assert isinstance(judged.config, ReplayConfig)
    found = judged.config.schedule.expected_error
    assert found is not None
    return found
