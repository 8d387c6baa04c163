"""What was measured in one run plans others: as a config with angles, and as a schedule that is replayed with resample=True."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.searches.flux_calls import flux_calls
from zoo.pipelines import CASES, with_noise_scheduler

from diffcache import CacheConfig, Schedule, accelerate, report
from diffcache.config import RunFacts
from diffcache.prediction.descriptions import predictor_from
from diffcache.prediction.predictors import Conditional
from diffcache.profiling.recording.covariance import covariance_of
from diffcache.profiling.recording.frozen import frozen
from diffcache.profiling.tuning.engine import Task
from diffcache.profiling.tuning.planned import TrajectoryEngine
from diffcache.recipes.planning_anew import planning_anew
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.guidance import Guidance
from diffcache.schedulers.moments import Moment, angles_of
from diffcache.trajectory.prior import universal
from diffcache.trajectory.process import prior_process
from diffcache.trajectory.transfer import covariance_at, response_at

FLUX, STABLE_DIFFUSION = CASES["FluxPipeline"], CASES["StableDiffusionPipeline"]
STEPS, SPEEDUP = 20, 2.0


def run_of(ticks: int, known: bool = True) -> RunFacts:
    """A flow in so many ticks, whose noise levels are known or not."""
    sigmas = np.linspace(1, 0, ticks, endpoint=False)
    moments = [Moment(i, None, float(np.arctan2(s, 1 - s))) for i, s in enumerate(sigmas)]
    if not known:
        return RunFacts("Net", num_ticks=ticks)
    return RunFacts(
        "Net",
        num_ticks=ticks,
        moments=tuple(moments),
        influence=tuple((-1 / ticks,) * tick + (0.0,) * (ticks - tick) for tick in range(ticks + 1)),
    )


def measured_in(ticks: int, **options: Any) -> TrajectoryConfig:
    """The method with what might have been measured in so many ticks."""
    moments = run_of(ticks).moments
    angles = np.array(angles_of(moments))
    size = 1 + np.cos(angles)
    covariance = (
        np.outer(size, size) * prior_process(universal().kernel.at(Guidance().strength), moments).covariance
    )
    response = np.outer((1.0, 2.0), 1 + angles**4)
    return TrajectoryConfig(
        speedup=SPEEDUP,
        **{"covariance": covariance.tolist(), "response": response.tolist(), "angles": angles.tolist()}
        | options,
    )


def test_angles_change_nothing_for_the_run_that_they_are_of() -> None:
    run = run_of(STEPS)
    found, usual = measured_in(STEPS), measured_in(STEPS, angles=None)
    assert found.plan(run, SPEEDUP) == usual.plan(run, SPEEDUP)
    both = [config.predictor_for(run).describe() for config in (found, usual)]
    assert both[0] == both[1]


@pytest.mark.parametrize("ticks", [12, 33])
def test_another_run_is_planned_with_what_is_carried_to_it(ticks: int) -> None:
    config, run = measured_in(STEPS), replace(run_of(ticks), guidance=Guidance(5.0))
    predictor = config.predictor_for(run)
    assert isinstance(predictor, Conditional)
    assert predictor.measured is not None
    carried = covariance_at(
        universal().kernel.at(Guidance(5.0).strength),
        np.array(config.covariance),
        config.angles,
        run.moments,
    )
    np.testing.assert_array_equal(predictor.covariance, carried)
    response = response_at(np.array(config.response), config.angles, run.moments)
    np.testing.assert_array_equal(predictor.measured.response, response)
    assert len(config.plan(run, SPEEDUP).ticks) == int(ticks / SPEEDUP)


@pytest.mark.parametrize("ticks", [12, 33])
def test_as_much_is_expected_of_a_carried_covariance_as_of_the_runs_own(ticks: int) -> None:
    """The truth is the prior times a size that changes slowly: so it is carried well."""
    run = run_of(ticks)
    carried, there = (measured_in(steps, response=None).plan(run, SPEEDUP) for steps in (STEPS, ticks))
    assert carried.expected == pytest.approx(there.expected, rel=0.2)


def test_other_noise_levels_in_as_many_ticks_are_another_run_too() -> None:
    run = run_of(STEPS)
    moved = replace(run, moments=tuple(replace(m, angle=0.9 * (m.angle or 0)) for m in run.moments))
    found, unmoved = (measured_in(STEPS, angles=given).predictor_for(moved) for given in (angles(run), None))
    assert isinstance(found, Conditional)
    assert isinstance(unmoved, Conditional)
    assert not np.allclose(found.covariance, unmoved.covariance)


def angles(run: RunFacts) -> tuple[float, ...]:
    return tuple(float(moment.angle or 0) for moment in run.moments)


@pytest.mark.parametrize("options", [{}, {"covariance": None}], ids=["covariance", "response alone"])
def test_where_noise_levels_are_unknown_the_length_must_be_the_same(options: dict[str, Any]) -> None:
    config = measured_in(STEPS, **options)
    assert len(config.plan(run_of(STEPS, known=False), SPEEDUP).ticks) == STEPS / SPEEDUP
    with pytest.raises(
        ScheduleError, match="measured in 20 ticks and this run has 12 of unknown noise levels: measure it"
    ):
        config.plan(run_of(12, known=False), SPEEDUP)


@pytest.mark.parametrize("given", [(), (1.0,), tuple(range(19)), ("a",) * 20, (float("nan"),) * 20])
@pytest.mark.parametrize("alone", ["covariance", "response"])
def test_there_is_an_angle_for_each_tick_that_was_measured(given: Any, alone: str) -> None:
    other = {"covariance": "response", "response": "covariance"}[alone]
    with pytest.raises(ConfigError, match=r"angles must be a tuple of (20 )?finite numbers"):
        measured_in(STEPS, angles=given, **{other: None})


def test_angles_are_saved_with_the_config(tmp_path: Path) -> None:
    config = measured_in(STEPS)
    assert CacheConfig.from_pretrained(config.save_pretrained(tmp_path)) == config


@cache
def tuned() -> tuple[Schedule, Schedule]:
    """What `tune` may return of a pipeline: a schedule by the universal covariance, and one by the pipeline's own."""
    pipe, calls = FLUX.build(), flux_calls(STEPS, 1)
    engine = TrajectoryEngine(Task(pipe=pipe, calls=calls, ticks=STEPS))
    proposals = [config for config in engine.propose(1 / SPEEDUP) if isinstance(config, TrajectoryConfig)]
    own = next(one for one in proposals if one.response is not None and one.predicts_with == "own")
    universal, own = (frozen(pipe, calls[0], config) for config in (proposals[0], own))
    return universal, own


def test_each_covariance_is_tried_with_each_response_and_nothing_twice() -> None:
    engine = TrajectoryEngine(Task(pipe=FLUX.build(), calls=flux_calls(STEPS, 1), ticks=STEPS))
    proposals = [*engine.propose(1 / SPEEDUP)]
    known = [
        (proposal.covariance, proposal.response, proposal.predicts_with)
        for proposal in proposals
        if isinstance(proposal, TrajectoryConfig)
    ]
    assert len({*engine.covariances}) == 3
    of_own = product(engine.covariances, (None, engine.response), ("own", "universal"))
    assert {*known} == {(None, None, "own"), *of_own}
    assert len(known) == len({*known})
    assert len(proposals) < engine.proposals  # one more is the best of all, corrected


def test_a_schedule_by_the_pipelines_own_covariance_says_where_and_what_was_measured() -> None:
    pipe, (schedule, own) = FLUX.build(), tuned()
    found = covariance_of(pipe, flux_calls(STEPS, 1))
    assert own.predictor["angles"] == [moment.angle for moment in found.moments]
    assert own.predictor["between"] == found.matrix.tolist()
    assert np.array(own.predictor["response"]).shape == (2, STEPS)
    assert own.predictor["pure_noise"] == pytest.approx(np.pi / 2)
    assert own.predictor["amplification"] == found.amplification
    assert not {"angles", "response", "pure_noise", "amplification"} & set(schedule.predictor)


def test_an_amplification_that_was_measured_counts_in_other_runs_whatever_these_tell() -> None:
    strong, usual = replace(run_of(33), guidance=Guidance(7.5)), replace(run_of(33), guidance=Guidance(1.0))
    config = measured_in(STEPS, response=None, amplification=1.6)
    assert config.plan(strong, SPEEDUP) == config.plan(usual, SPEEDUP)
    unknown = measured_in(STEPS, response=None)
    shown = replace(strong, guidance=Guidance(shown=1.6))
    assert unknown.plan(shown, SPEEDUP) == config.plan(strong, SPEEDUP)
    assert unknown.plan(strong, SPEEDUP).expected != config.plan(strong, SPEEDUP).expected


@pytest.mark.parametrize("given", [0.5, float("inf"), "2"])
def test_an_amplification_is_at_least_one(given: Any) -> None:
    with pytest.raises(ConfigError, match="amplification must be a number >= 1"):
        TrajectoryConfig(amplification=given)


def test_a_schedule_of_image_to_image_says_how_far_from_pure_noise_it_began() -> None:
    whole = run_of(2 * STEPS).moments
    left = tuple(
        replace(moment, tick=i, turned=np.pi / 2 - (moment.angle or 0))
        for i, moment in enumerate(whole[STEPS:])
    )
    config, run = measured_in(STEPS, angles=None), replace(run_of(STEPS), moments=left)
    predictor = config.predictor_for(run)
    assert isinstance(predictor, Conditional)
    assert predictor.measured is not None
    assert predictor.measured.pure_noise == pytest.approx(np.pi / 2)
    again = predictor_from(predictor.describe())
    assert isinstance(again, Conditional)
    assert again.measured is not None
    assert again.measured.pure_noise == predictor.measured.pure_noise


@pytest.mark.parametrize("given", [1.0, float("nan"), "pi"])
def test_pure_noise_lies_beyond_all_other_angles(given: Any) -> None:
    assert measured_in(STEPS, pure_noise=np.pi / 2).pure_noise == np.pi / 2
    with pytest.raises(ConfigError, match=r"pure_noise must be a number >= 1\.57"):
        measured_in(STEPS, pure_noise=given)


def test_pure_noise_without_angles_is_refused() -> None:
    with pytest.raises(ConfigError, match="pure_noise belongs to angles"):
        TrajectoryConfig(speedup=2, pure_noise=1.5)


def test_angles_without_anything_that_was_measured_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="angles say where covariance or response was measured"):
        TrajectoryConfig(speedup=2, angles=(1.5, 1.0))


def test_it_replays_to_the_bit_in_the_run_that_it_is_for(tmp_path: Path) -> None:
    schedule = Schedule.from_pretrained(tuned()[1].save_pretrained(tmp_path))
    pipe = accelerate(FLUX.build(), schedule)
    picture, decisions = FLUX.render(pipe, 0, STEPS), report(pipe).decisions
    accelerate(pipe, schedule, resample=True)
    assert torch.equal(FLUX.render(pipe, 0, STEPS), picture)
    assert torch.equal(report(pipe).decisions, decisions)


def test_the_new_plan_has_as_large_a_speed_up() -> None:
    one = replace(tuned()[1], table={"transformer": {"all": "#" + "-" * (STEPS - 1)}})
    for ticks, expected in ((2 * STEPS, STEPS), (STEPS, STEPS), (4, 4)):  # a run has no more ticks than that
        few = planning_anew(one, ticks)
        assert few is not None
        assert few.speedup == expected


def test_the_new_plan_predicts_as_the_schedule_does(tmp_path: Path) -> None:
    pipe, calls = FLUX.build(), flux_calls(STEPS, 1)
    engine = TrajectoryEngine(Task(pipe=pipe, calls=calls, ticks=STEPS))
    for name in ("own", "universal"):
        config = next(
            one
            for one in engine.propose(1 / SPEEDUP)
            if isinstance(one, TrajectoryConfig) and one.covariance and one.predicts_with == name
        )
        schedule = Schedule.from_pretrained(frozen(pipe, calls[0], config).save_pretrained(tmp_path))
        anew = planning_anew(schedule, STEPS + 4)
        assert anew is not None
        assert anew.predicts_with == name


def test_its_own_run_follows_its_table_and_no_new_plan() -> None:
    schedule = replace(tuned()[1], table={"transformer": {"all": "##" + "-#" * (STEPS // 2 - 1)}})
    pipe = accelerate(FLUX.build(), schedule, resample=True)
    FLUX.render(pipe, 0, STEPS)
    assert report(pipe).computed_ticks == schedule.computed_ticks


@pytest.mark.parametrize("steps", [12, 33])
def test_it_is_planned_anew_for_another_number_of_steps(steps: int, tmp_path: Path) -> None:
    schedule = Schedule.from_pretrained(tuned()[1].save_pretrained(tmp_path))
    pipe = accelerate(FLUX.build(), schedule, resample=True)
    picture = FLUX.render(pipe, 0, steps)
    assert len(report(pipe).computed_ticks) == int(steps / SPEEDUP)
    again = report(pipe).to_schedule()
    accelerate(pipe, planning_anew(schedule, steps))
    assert torch.equal(FLUX.render(pipe, 0, steps), picture)
    accelerate(pipe, again)  # and what it did is a schedule for that number of steps
    assert torch.equal(FLUX.render(pipe, 0, steps), picture)


def test_it_is_planned_anew_for_another_noise_scheduler() -> None:
    pipe, call = STABLE_DIFFUSION.build(), STABLE_DIFFUSION.call(0, STEPS)
    found = covariance_of(pipe, [call])
    config = TrajectoryConfig(
        speedup=SPEEDUP, covariance=found.matrix.tolist(), angles=angles_of(found.moments)
    )
    schedule = frozen(pipe, STABLE_DIFFUSION.call(0, STEPS), config)
    with_noise_scheduler(pipe, "Euler")
    accelerate(pipe, schedule)
    with pytest.raises(ScheduleError, match="pass resample=True"):
        STABLE_DIFFUSION.render(pipe, 0, STEPS)
    accelerate(pipe, schedule, resample=True)
    assert torch.isfinite(STABLE_DIFFUSION.render(pipe, 0, STEPS)).all()
    assert len(report(pipe).computed_ticks) == STEPS / SPEEDUP


def test_what_two_denoisers_showed_is_not_carried_to_other_runs() -> None:
    pipe = FLUX.build()
    found = covariance_of(pipe, flux_calls(STEPS, 1))
    config = TrajectoryConfig(speedup=2, covariance=found.matrix.tolist())
    with pytest.raises(
        ConfigError,
        match="handovers are ticks of the run that was measured, and are not carried to other runs: leave angles out",
    ):
        config.replace(handovers=(5,), angles=angles_of(found.moments))
    for handovers, planned_anew in (((), True), ((5,), False)):
        schedule = frozen(pipe, FLUX.call(0, STEPS), config.replace(handovers=handovers))
        assert (planning_anew(schedule, STEPS) is not None) is planned_anew


def test_hindsight_is_as_the_new_plan_and_the_user_want_it() -> None:
    schedule = tuned()[1]
    held = {key: its for key, its in schedule.predictor.items() if key != "hindsight"}  # so few ticks may be
    for made, asked, expected in (
        (schedule, None, True),
        (schedule, False, False),
        (replace(schedule, predictor=held), None, True),
    ):
        pipe = accelerate(FLUX.build(), made, resample=True, hindsight=asked)
        picture = FLUX.render(pipe, 0, 33)
        assert bool(report(pipe).to_schedule().predictor.get("hindsight")) is expected
        assert report(pipe).notes[0].startswith("the schedule was planned anew for 33 ticks")
        accelerate(pipe, planning_anew(made, 33, asked))
        assert torch.equal(FLUX.render(pipe, 0, 33), picture)


def test_without_resample_it_is_refused_in_a_sentence_that_names_it() -> None:
    pipe = accelerate(FLUX.build(), tuned()[1])
    with pytest.raises(ScheduleError, match="20 ticks and this run 12: pass resample=True, or record one"):
        FLUX.render(pipe, 0, 12)


@pytest.mark.parametrize("made", ["by the universal covariance", "before angles were known"])
def test_a_schedule_that_does_not_say_where_it_was_measured_is_for_its_own_run(made: str) -> None:
    universal, own = tuned()
    old = {key: its for key, its in own.predictor.items() if key not in ("angles", "response")}
    schedule = universal if made.startswith("by") else replace(own, predictor=old)
    pipe = accelerate(FLUX.build(), schedule, resample=True)
    assert torch.isfinite(FLUX.render(pipe, 0, STEPS)).all()
    for asked in (schedule, ReplayConfig(schedule=schedule, resample=True)):
        accelerate(pipe, asked)
        with pytest.raises(
            ScheduleError,
            match="predicts by what it knows of its own 20 ticks, which resample=True cannot carry over: tune one",
        ):
            FLUX.render(pipe, 0, 12)


@pytest.mark.parametrize(
    "broken",
    [
        {"angles": [1.0]},
        {"angles": None},
        {"predicts_with": "another"},
        {"angles": ["a"] * STEPS},
        {"response": [[1.0] * STEPS] * 3},
        {"response": [[1.0]] * 2},
        {"response": 1.0},
        {"pure_noise": "pi"},
        {"amplification": "two"},
        {"amplification": 0.5},
        {"pure_noise": 90.0},
    ],
    ids=str,
)
def test_a_description_with_other_angles_or_responses_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError, match="not a predictor that this version knows"):
        predictor_from({**tuned()[1].predictor, **broken})
