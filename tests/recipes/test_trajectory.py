"""The method `trajectory`: counts that are kept, whatever is known of a run, and schedules that replay it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler
from zoo.pipelines import CASES

from diffcache import CacheConfig, Schedule, accelerate, report
from diffcache.config import RunFacts
from diffcache.evals.harness.facts import run_facts
from diffcache.prediction.predictors import Conditional
from diffcache.profiling.recording.covariance import covariance_of
from diffcache.recipes import run_plans, trajectory
from diffcache.recipes.budgeted import allowed, evenly
from diffcache.recipes.run_plans import course_of
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.errors import ConfigError, DiffcacheError, ScheduleError
from diffcache.schedulers.guards import History
from diffcache.schedulers.guidance import TYPICAL_SCALE, Guidance
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Step
from diffcache.trajectory import known
from diffcache.trajectory.error_model import ErrorModel
from diffcache.trajectory.following import USUAL, PlanFollower, PlannedTicks
from diffcache.trajectory.known import Course
from diffcache.trajectory.plan import HELD, LONGEST_MOVED, TrajectoryPlan, planned
from diffcache.trajectory.response import Response

FLUX = CASES["FluxPipeline"]
STEPS = 8
KNOWN = RunFacts(
    "Net",
    num_ticks=20,
    moments=tuple(Moment(i, None, float(np.arctan2(1 - i / 20, i / 20))) for i in range(20)),
    influence=tuple((-0.05,) * tick + (0.0,) * (20 - tick) for tick in range(21)),
)
UNKNOWN = RunFacts("Net", num_ticks=20)


def guided(scale: float) -> RunFacts:
    """The known run, with guidance."""
    return replace(KNOWN, guidance=Guidance(scale))


def test_where_samples_are_clipped_larger_errors_are_expected_of_the_same_plan() -> None:
    assert KNOWN.influence is not None
    without = replace(KNOWN, influence=None)
    clipped = replace(without, clipped_influence=tuple(tuple(3 * x for x in row) for row in KNOWN.influence))
    plans = [TrajectoryConfig().plan(facts, 2) for facts in (without, clipped)]
    assert plans[1] == replace(plans[0], expected=plans[1].expected)
    assert plans[1].expected > 1.5 * plans[0].expected


def test_with_fresh_noise_outputs_of_even_ticks_are_held() -> None:
    noisy = replace(KNOWN, influence=None, adds_noise=True)
    config = TrajectoryConfig(speedup=2)
    plan = config.plan(noisy, 2)
    assert plan.ticks == tuple(evenly(20, 10, config.guards(noisy)))
    assert (plan.caution, plan.corrects) == (HELD, False)
    assert config.remark(noisy) is None
    assert TrajectoryConfig(speedup=1).plan(noisy, 1).expected == 0


def test_where_nothing_tells_the_noise_levels_larger_errors_are_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    careful = TrajectoryConfig().plan(UNKNOWN, 2)
    run_plans.forget()
    monkeypatch.setattr(known, "WITHOUT_NOISE_LEVELS", 1.0)
    usual = TrajectoryConfig().plan(UNKNOWN, 2)
    run_plans.forget()
    assert careful == replace(usual, expected=careful.expected)
    assert careful.expected == pytest.approx(2 * usual.expected)


@pytest.mark.parametrize("clips", [True, False])
def test_a_run_knows_whether_its_samples_are_clipped(clips: bool) -> None:
    case = CASES["DiTPipeline"]
    pipe = case.build()
    pipe.scheduler = DDIMScheduler(clip_sample=clips)
    facts = run_facts(pipe, case.call(0, 20))
    assert (facts.clipped_influence is not None, facts.influence is None) == (clips, clips)


@pytest.mark.parametrize("prediction", ["epsilon", "sample"])
def test_where_predicted_noise_is_clipped_the_first_ticks_are_computed(prediction: str) -> None:
    case = CASES["DiTPipeline"]
    pipe = case.build()
    pipe.scheduler = DDIMScheduler(prediction_type=prediction)
    facts = replace(run_facts(pipe, case.call(0, 50)), guidance=Guidance(1.0))
    ticks = TrajectoryConfig().plan(facts, 1.5).ticks
    assert (ticks[:9] == tuple(range(9))) == (prediction == "epsilon")


@pytest.mark.parametrize("facts", [KNOWN, UNKNOWN], ids=["known", "unknown"])
@pytest.mark.parametrize("speedup", [1, 1.3, 2, 3, 20])
@pytest.mark.parametrize(
    "options",
    [{}, {"tail_steps": 2}, {"warmup_steps": 3}, {"warmup_steps": 0, "tail_steps": 3}, {"hindsight": False}],
    ids=str,
)
def test_as_many_ticks_are_computed_as_the_speed_up_allows(
    facts: RunFacts, speedup: float, options: dict[str, Any]
) -> None:
    config = TrajectoryConfig(speedup=speedup, **options)
    scheduler, guards = config.scheduler(facts), config.guards(facts)
    computed = [
        tick
        for tick in range(20)
        if guards.forces_compute(Step(tick, 20, "0"), History(0, None)) is not None
        or scheduler.decide(Step(tick, 20, "0"), None).computes
    ]
    assert len(computed) == max(allowed(20, speedup), options.get("warmup_steps", 1))
    assert config.predictor_for(facts).depth == 4


def ending_with(share: float) -> RunFacts:
    """A run whose last step is so long, as a share of the others."""
    assert KNOWN.influence is not None
    *before, result = KNOWN.influence
    return replace(KNOWN, influence=(*before, (*result[:-1], share * result[-2])))


def test_the_plan_says_whether_the_last_tick_is_computed_where_its_step_is_known() -> None:
    assert TrajectoryConfig().guards(KNOWN).tail_steps == 0
    assert TrajectoryConfig(tail_steps=1).guards(KNOWN).tail_steps == 1
    assert TrajectoryConfig().guards(UNKNOWN).tail_steps == 1


@pytest.mark.parametrize(("share", "is_short"), [(1.0, False), (0.6, False), (0.4, True), (0.0, True)])
def test_plans_without_the_last_tick_alone_are_made_where_its_step_is_short(
    share: float, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def spied(errors: Any, starts: Any, is_own: bool) -> TrajectoryPlan:
        tried.append(len(starts))
        return planned(errors, starts, is_own=is_own)

    monkeypatch.setattr(run_plans, "planned", spied)
    run_plans.forget()
    run = ending_with(share)
    TrajectoryConfig().plan(run, 2)
    assert TrajectoryConfig().guards(run).tail_steps == 0
    TrajectoryConfig(tail_steps=1).plan(run, 2)
    assert tried == [1 if is_short else 2, 1]


@pytest.mark.parametrize("warmup", [1, 3])
@pytest.mark.parametrize(("speedup", "has_last"), [(1.5, True), (2, True), (3, False), (5, False)])
def test_the_last_tick_is_computed_unless_the_others_do_better_without_it(
    speedup: float, has_last: bool, warmup: int
) -> None:
    plan, free, fixed = (
        TrajectoryConfig(warmup_steps=warmup, tail_steps=tail).plan(ending_with(1.0), speedup)
        for tail in (None, 0, 1)
    )
    assert plan == free
    assert (19 in plan.ticks) == has_last
    assert 19 in fixed.ticks
    assert len(plan.ticks) == len(fixed.ticks)


def test_in_long_runs_no_plan_is_made_without_the_last_tick() -> None:
    count = LONGEST_MOVED + 1
    angles = np.linspace(1.5, 0.01, count)
    influence = tuple((-0.05,) * tick + (0.0,) * (count - tick) for tick in range(count + 1))
    run = RunFacts(
        "Net",
        num_ticks=count,
        moments=tuple(Moment(i, None, float(angle)) for i, angle in enumerate(angles)),
        influence=influence,
    )
    assert TrajectoryConfig().guards(run).tail_steps == 1
    assert count - 1 in TrajectoryConfig(speedup=8).plan(run, 8).ticks
    assert TrajectoryConfig(tail_steps=0).plan(run, 8).ticks[-1] < count - 1


def test_where_the_last_step_does_nothing_its_tick_is_not_computed() -> None:
    found = TrajectoryConfig(speedup=2).plan(ending_with(0.0), 2)
    assert len(found.ticks) == 10
    assert 19 not in found.ticks
    assert 19 in TrajectoryConfig(speedup=2).plan(KNOWN, 2).ticks


def test_in_a_run_of_unknown_length_ticks_are_evenly_spaced() -> None:
    config, facts = TrajectoryConfig(speedup=2.5), RunFacts("Net")
    scheduler = config.scheduler(facts)
    assert [t for t in range(9) if scheduler.decide(Step(t, None, "0"), None).computes] == [0, 3, 6]
    assert config.predictor_for(facts).depth == 2
    of_threshold = TrajectoryConfig(threshold=0.1).scheduler(facts)
    assert [t for t in range(5) if of_threshold.decide(Step(t, None, "0"), None).computes] == [0, 2, 4]
    everything = TrajectoryConfig(threshold=0.0).scheduler(facts)
    assert all(everything.decide(Step(t, None, "0"), None).computes for t in range(5))


def test_guidance_makes_reuse_more_careful_unless_covariance_and_response_are_given() -> None:
    strong, none = guided(12.0), guided(0.0)
    careful, usual = (TrajectoryConfig().plan(run, 2) for run in (strong, none))
    assert (careful.caution.roughness, careful.caution.noise) > (usual.caution.roughness, usual.caution.noise)
    assert careful.expected > 3 * usual.expected
    assert TrajectoryConfig().plan(none, 2) == TrajectoryConfig().plan(guided(1.0), 2)
    assert TrajectoryConfig().plan(KNOWN, 2) == TrajectoryConfig().plan(guided(TYPICAL_SCALE), 2)
    smooth = np.exp(-np.square(np.subtract.outer(range(20), range(20)) / 20)) + 1e-6 * np.eye(20)
    own = TrajectoryConfig(covariance=smooth.tolist(), response=np.ones((2, 20)).tolist())
    assert own.plan(strong, 2).caution != HELD
    assert own.plan(strong, 2) == own.plan(none, 2)


def test_guidance_that_keeps_the_norm_counts_as_less() -> None:
    kept = replace(KNOWN, guidance=Guidance(9.0, norm_along=-1))
    free = replace(KNOWN, guidance=Guidance(3.0))
    assert TrajectoryConfig().plan(kept, 2) == TrajectoryConfig().plan(free, 2)


def test_a_run_with_too_few_ticks_to_know_anything_holds_and_corrects_nothing() -> None:
    config = TrajectoryConfig(speedup=10)
    assert not config.corrects(KNOWN)
    assert config.corrects(RunFacts("Net"))
    assert TrajectoryConfig(speedup=2).corrects(KNOWN)
    assert not TrajectoryConfig(speedup=2, hindsight=False).corrects(KNOWN)
    moments = [KNOWN.moments[tick] for tick in (0, 10)]
    weights = config.predictor_for(KNOWN).weights(moments[:1], moments[1])
    assert weights == pytest.approx([1.0], abs=0.01)


def test_a_speed_up_whose_expected_error_is_large_is_remarked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = replace(KNOWN, decodes=True)
    assert TrajectoryConfig(speedup=1.3).remark(decoded) is None
    config = TrajectoryConfig(speedup=4)
    remark = config.remark(decoded)
    assert remark is not None
    assert "num_inference_steps=5" in remark
    assert f"an error of {config.plan(KNOWN, 4).expected:.1%}" in remark
    assert f"an error of {USUAL * config.plan(KNOWN, 4).expected:.1%}" in str(config.remark(KNOWN))
    assert TrajectoryConfig(speedup=1).remark(KNOWN) is None
    for name, speedup in (("WORTH_COMPARING_IF_FEW", 4), ("WORTH_COMPARING", 2)):
        config = TrajectoryConfig(speedup=speedup)
        expected = config.plan(KNOWN, speedup).expected
        for bound in (0.99 * expected, 1.01 * expected):
            monkeypatch.setattr(trajectory, name, bound)
            assert (config.remark(decoded) is None) == (expected < bound)
    stiff = guided(300.0)
    assert "an error of more than 100% was expected" in str(config.remark(stiff))
    assert TrajectoryConfig(threshold=0.02).remark(KNOWN) is None


def test_what_was_measured_with_one_call_at_each_noise_level_is_not_certain_of_heuns_second_calls() -> None:
    angles = tuple(moment.angle for moment in KNOWN.moments)
    carried = TrajectoryConfig(speedup=2, covariance=np.eye(20) + 1, angles=angles)
    levels = [KNOWN.moments[2 * (i // 2)] for i in range(20)]
    heun = replace(KNOWN, moments=tuple(replace(at, tick=i) for i, at in enumerate(levels)))
    course = course_of(heun)
    by_noise_level = carried.known.process_of(course._replace(influence=None)).covariance
    doubt = carried.known.process_of(course).covariance - by_noise_level
    assert np.count_nonzero(doubt) == 10
    assert (doubt.diagonal()[1::2] > 0).all()

    measured = carried.replace(covariance=by_noise_level, angles=tuple(at.angle for at in levels))
    half = Course(course.moments[:10], tuple(row[:10] for row in KNOWN.influence[:11]), 1.0)
    unknown = measured.known.process_of(half._replace(influence=None))
    assert np.array_equal(measured.known.process_of(half).covariance, unknown.covariance)


def test_two_denoisers_compute_everything_where_nothing_may_be_lost() -> None:
    run = replace(KNOWN, experts=2)
    assert TrajectoryConfig(threshold=0).plan(run, 1).ticks == tuple(range(20))
    assert TrajectoryConfig(speedup=1).remark(run) is None
    assert len(TrajectoryConfig().plan(run, 2).ticks) == 9  # the handover will be one more


@pytest.mark.parametrize("handovers", [(9,), (4, 13)])
def test_a_tick_at_which_another_denoiser_takes_over_is_computed_within_the_speed_up(
    handovers: tuple[int, ...],
) -> None:
    run = replace(KNOWN, experts=1 + len(handovers))
    for speedup in (2, 4):
        known = TrajectoryConfig(speedup=speedup, handovers=handovers).plan(run, speedup)
        assert {*handovers} <= {*known.ticks}
        assert len(known.ticks) == 20 // speedup
        unknown = TrajectoryConfig(speedup=speedup).plan(run, speedup)
        assert len(unknown.ticks) == len(known.ticks) - len(handovers)


@pytest.mark.parametrize(
    ("handovers", "warmup", "tail"), [((1,), 1, 1), ((18,), 1, 1), ((3,), 3, 1), ((17,), 1, 3), ((30,), 1, 1)]
)
def test_a_handover_takes_the_place_of_no_tick_that_guards_compute(
    handovers: tuple[int, ...], warmup: int, tail: int
) -> None:
    config = TrajectoryConfig(speedup=3, handovers=handovers, warmup_steps=warmup, tail_steps=tail)
    ticks = config.plan(KNOWN, 3).ticks
    assert {*range(warmup), *range(20 - tail, 20)} <= {*ticks}
    assert {*handovers} - {30} <= {*ticks}
    assert len(ticks) == 6


@pytest.mark.parametrize("handovers", [(0,), (5, 5), (6, 4), (2.5,), (True,), 5])
def test_handovers_are_rising_ticks(handovers: Any) -> None:
    with pytest.raises(ConfigError, match="handovers must be a tuple of ticks above 0, by rising number"):
        TrajectoryConfig(handovers=handovers)


@pytest.mark.parametrize("ticks", [1, 2, 3, 5])
def test_runs_shorter_than_their_tail_compute_everything(ticks: int) -> None:
    run = RunFacts("Net", num_ticks=ticks)
    assert TrajectoryConfig(tail_steps=10).plan(run, 2).ticks == tuple(range(ticks))


def test_a_variance_of_zero_is_refused_and_an_indefinite_covariance_is_not() -> None:
    with pytest.raises(ConfigError, match="a variance above 0 at each tick"):
        TrajectoryConfig(covariance=np.zeros((20, 20)).tolist())
    factor = np.random.default_rng(0).normal(size=(20, 2))
    indefinite = (factor @ factor.T).astype(np.float32).astype(float)
    plan = TrajectoryConfig(covariance=indefinite.tolist(), response=np.ones((2, 20)).tolist()).plan(KNOWN, 2)
    assert len(plan.ticks) == 10
    assert 0 <= plan.expected < 1


def test_only_what_is_the_pipelines_own_is_searched_finely_and_not_doubted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    doubts: list[bool] = []

    class Spied(ErrorModel):
        def __init__(self, process: Any, influence: Any, pace: Any, response: Response, *args: Any) -> None:
            doubts.append(response.deviation is not None)
            super().__init__(process, influence, pace, response, *args)

    def spied(errors: Any, starts: Any, is_own: bool) -> TrajectoryPlan:
        searched.append(is_own)
        return planned(errors, starts, is_own=is_own)

    monkeypatch.setattr(run_plans, "planned", spied)
    monkeypatch.setattr(known, "ErrorModel", Spied)
    run_plans.forget()
    own = {"covariance": (np.eye(20) + 1).tolist(), "response": np.ones((2, 20)).tolist()}
    for config in (TrajectoryConfig(), TrajectoryConfig(**own)):
        config.plan(KNOWN, 2)
    assert searched == [False, True]
    assert doubts[0]
    assert not doubts[-1]


def test_the_remark_counts_what_guards_compute() -> None:
    few = TrajectoryConfig(speedup=5)
    assert "leaves 4 computed ticks" in str(few.remark(KNOWN))
    assert "leaves 9 computed ticks" in str(few.replace(warmup_steps=9, threshold=1e-9).remark(KNOWN))
    assert few.replace(max_consecutive_reuses=1).remark(KNOWN) is None


def test_runs_that_are_alike_are_planned_once() -> None:
    config = TrajectoryConfig(speedup=3)
    assert config.plan(KNOWN, 3) is TrajectoryConfig(speedup=3).plan(KNOWN, 3)
    assert config.plan(KNOWN, 3) is not config.plan(UNKNOWN, 3)


def test_errors_that_the_covariance_foretells_do_not_surprise() -> None:
    config = TrajectoryConfig(speedup=2)
    scheduler, predictor = config.scheduler(KNOWN), config.predictor_for(KNOWN)
    assert isinstance(scheduler, PlannedTicks)
    assert isinstance(predictor, Conditional)
    for tick in range(4, 12):
        past = [tick - 1, tick - 2, tick - 3, tick - 4]
        scheduler.learn([tick, *past], (4.0, 4 * predictor.expected_error(past, tick) ** 2))
    assert scheduler.surprise == pytest.approx(1.0)
    scheduler.learn([12, 11, 10, 9, 8], (4.0, 1e9))
    assert scheduler.surprise > 1.5


def test_with_its_own_covariance_a_plan_expects_what_it_did_before_the_run() -> None:
    own = TrajectoryConfig(speedup=2, covariance=(np.eye(20) + 1).tolist())
    decoded = replace(KNOWN, decodes=True)
    planned_ticks, control = own.scheduler(decoded), own.replace(speedup=None).scheduler(decoded)
    for scheduler in (planned_ticks, control):
        assert isinstance(scheduler, PlanFollower)
        scheduler.learn([12, 11, 10, 9, 8], (4.0, 1e9))
    plan = own.plan(KNOWN, 2)
    assert planned_ticks.expected_error(plan.ticks) == plan.expected
    assert isinstance(control, PlanFollower)
    assert control.surprise > 1.5  # it goes over to a denser plan


def test_where_steps_are_made_again_errors_count_as_those_of_velocities() -> None:
    clipped = replace(KNOWN, influence=None, clipped_influence=KNOWN.influence)
    for hindsight, factor in ((True, 1.0), (False, USUAL)):
        config = TrajectoryConfig(speedup=2, hindsight=hindsight)
        scheduler, plan = config.scheduler(clipped), config.plan(clipped, 2)
        assert isinstance(scheduler, PlannedTicks)
        assert scheduler.expected_error(plan.ticks) == pytest.approx(factor * plan.expected)


def test_where_outputs_are_held_measured_errors_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = TrajectoryPlan((0, 10), HELD, 0.1)
    monkeypatch.setattr(TrajectoryConfig, "plan", lambda self, run, speedup: plan)
    scheduler = TrajectoryConfig(speedup=10).scheduler(replace(KNOWN, decodes=True))
    assert isinstance(scheduler, PlannedTicks)
    scheduler.learn([12, 11, 10, 9, 8], (1.0, 1e9))
    assert scheduler.expected_error(plan.ticks) == 0.1


def test_a_pipeline_computes_the_same_ticks_with_every_seed() -> None:
    pipe, computed = accelerate(FLUX.build(), "trajectory", speedup=2), []
    for seed in (0, 1):
        FLUX.render(pipe, seed, STEPS)
        computed.append(report(pipe).computed_ticks)
    assert len(computed[0]) == STEPS // 2
    assert computed[0] == computed[1]


@pytest.mark.parametrize("covariance", [((1.0, 0.0),), (), ((float("nan"),),)])
def test_a_covariance_is_a_square_of_finite_numbers(covariance: Any) -> None:
    with pytest.raises(ConfigError, match="square of finite numbers"):
        TrajectoryConfig(covariance=covariance)


@pytest.mark.parametrize("response", [((1.0,),), ((1.0,), (1.0,), (1.0, 2.0)), ((float("nan"),),) * 3])
def test_a_response_is_two_rows_of_finite_numbers(response: Any) -> None:
    with pytest.raises(ConfigError, match="two rows of finite numbers"):
        TrajectoryConfig(response=response)


def test_a_response_of_another_length_is_refused() -> None:
    pipe = accelerate(FLUX.build(), TrajectoryConfig(speedup=2, response=np.ones((2, STEPS + 1)).tolist()))
    with pytest.raises(ScheduleError, match=f"response was measured in {STEPS + 1} ticks and this run has"):
        FLUX.render(pipe, 0, STEPS)


def test_a_covariance_of_another_length_is_refused() -> None:
    pipe = accelerate(FLUX.build(), TrajectoryConfig(speedup=2, covariance=np.eye(STEPS + 1).tolist()))
    with pytest.raises(ScheduleError, match=f"measured in {STEPS + 1} ticks and this run has {STEPS}"):
        FLUX.render(pipe, 0, STEPS)


def test_its_own_covariance_is_that_of_the_outputs_and_is_saved_with_it(tmp_path: Path) -> None:
    pipe = FLUX.build()
    outputs: list[torch.Tensor] = []
    hook = pipe.transformer.register_forward_hook(lambda m, args, output: outputs.append(output[0].flatten()))
    found = covariance_of(pipe, [FLUX.call(0, STEPS)])
    hook.remove()
    rows = torch.stack(outputs).double()  # a flow model returns velocities
    np.testing.assert_allclose(found.matrix, (rows @ rows.T / rows.shape[1]).numpy(), rtol=1e-4)
    assert [moment.tick for moment in found.moments] == list(range(STEPS))
    config = TrajectoryConfig(speedup=2, covariance=found.matrix.tolist())
    assert CacheConfig.from_pretrained(config.save_pretrained(tmp_path)) == config


def test_a_schedule_replays_it_to_the_bit_and_on_no_other_length(tmp_path: Path) -> None:
    pipe = accelerate(FLUX.build(), "trajectory", speedup=2)
    picture = FLUX.render(pipe, 0, STEPS)
    schedule = Schedule.from_pretrained(report(pipe).to_schedule().save_pretrained(tmp_path))
    accelerate(pipe, schedule)
    assert torch.equal(FLUX.render(pipe, 0, STEPS), picture)
    accelerate(pipe, schedule, resample=True)
    with pytest.raises(DiffcacheError, match="predicts by what it knows of its own 8 ticks"):
        FLUX.render(pipe, 0, STEPS + 2)


def test_plans_of_a_run_share_their_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Counted(ErrorModel):
        def __init__(self, *args: Any) -> None:
            made.append(args)
            super().__init__(*args)

    monkeypatch.setattr(known, "ErrorModel", Counted)
    run_plans.forget()
    counts = []
    for speedup in (2, 3, 4):
        TrajectoryConfig().plan(KNOWN, speedup)
        counts.append(len(made))
    assert counts[0] > 0
    assert counts == [counts[0]] * 3
    run_plans.forget()


@pytest.mark.parametrize(("threshold", "told"), [(5, True), (0.05, False)])
def test_a_threshold_that_was_meant_in_percent_is_told(
    threshold: float, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    accelerate(FLUX.build(), "trajectory", threshold=threshold)
    sentence = "threshold=5 allows an expected error of 250 %: if it was meant in percent, write threshold=0.05, which allows 2.5 %"
    assert caplog.text.count(sentence) == told
