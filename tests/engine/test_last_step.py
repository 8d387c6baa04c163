"""The sample after a run's last step is corrected by a weighted sum of what the run began with and of what it computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn

from diffcache import Schedule, accelerate, denoising_run, report, restore
from diffcache.config import RunFacts
from diffcache.engine.last_step import LastStep
from diffcache.engine.observers import Observer, observed
from diffcache.engine.scopes import innermost
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.profiling.calibrating.corrections import with_corrections
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.schedule_fields import LAST_STEP
from diffcache.reports.records import TickCalls
from diffcache.reports.run_report import RunReport
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.guidance import Guidance
from diffcache.schedulers.schedule import GUIDANCE_SCALE
from diffcache.schedulers.steps import Decision

STEPS, SHAPE = 12, (2, 4, 8, 8)


class Net(nn.Module):
    """Its velocity bends in time."""

    def forward(self, hidden_states: Tensor, timestep: Tensor) -> Tensor:
        return torch.sin(3 * hidden_states + timestep.reshape(-1, 1, 1, 1) / 100)


class Shown(Observer):
    """What the steps got."""

    sees_steps = True

    def __init__(self) -> None:
        self.first: Tensor | None = None
        self.velocities: list[Tensor] = []

    def stepping(self, tick: int, seen: Tensor, velocity: Tensor) -> None:
        self.first = seen.clone() if self.first is None else self.first
        self.velocities.append(velocity.clone())


def drawn(
    net: nn.Module,
    steps: int = STEPS,
    dtype: torch.dtype = torch.float32,
    between: Callable[[int], Any] = id,
    grows_at: int = STEPS,
    guided_from: int = STEPS,
    guided_until: int = STEPS,
    changed: Callable[[int, Tensor], Tensor] = lambda i, sample: sample,
    named: bool = True,
) -> Tensor:
    noise_scheduler = FlowMatchEulerDiscreteScheduler()
    noise_scheduler.set_timesteps(steps)
    sample = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).to(dtype)
    given: dict[str, Any] = {"noise_scheduler": noise_scheduler} if named else {}
    with torch.no_grad(), denoising_run(net, num_steps=steps, **given) as loop:
        for i, timestep in enumerate(noise_scheduler.timesteps):
            loop.begin_step(i)
            sample = torch.cat([sample, sample]) if i == grows_at else sample
            times = timestep.expand(len(sample)).to(dtype)
            velocity = net(sample, times)
            if guided_from <= i < guided_until:
                velocity = velocity + 0.5 * (velocity - net(sample, times))
            sample = changed(i, noise_scheduler.step(velocity, timestep, sample)[0])
            between(i)
    return sample


def planned(net: nn.Module) -> Schedule:
    accelerate(net, EvenConfig(speedup=3, order=1))
    drawn(net)
    schedule: Schedule = report(net).to_schedule()
    restore(net)
    return schedule


def corrected(schedule: Schedule) -> Schedule:
    weights = torch.zeros(1 + STEPS)
    weights[0] = 0.25
    for i, tick in enumerate(schedule.computed_ticks):
        weights[1 + tick] = 0.5 - 0.125 * i
    return with_corrections(schedule, {LAST_STEP: weights})


def replayed(net: nn.Module, config: ReplayConfig, **options: Any) -> tuple[Tensor, Shown, RunReport]:
    shown = Shown()
    accelerate(net, config)
    with observed(shown):
        result = drawn(net, **options)
    told = report(net)
    restore(net)
    return result, shown, told


@pytest.fixture
def net() -> nn.Module:
    return Net().eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_last_sample_gains_the_weighted_sum(net: nn.Module, dtype: torch.dtype) -> None:
    schedule = planned(net)
    weighted = corrected(schedule)
    plain, shown, _ = replayed(net, ReplayConfig(schedule=schedule), dtype=dtype)
    result, _, told = replayed(net, ReplayConfig(schedule=weighted), dtype=dtype)
    assert told.computed_ticks == schedule.computed_ticks
    assert shown.first is not None
    first, *each = weighted.corrections[LAST_STEP].tolist()
    change = first * shown.first + sum(
        weight * velocity for weight, velocity in zip(each, shown.velocities, strict=True)
    )
    assert float(change.abs().mean()) > 0.1
    assert result.dtype == dtype
    torch.testing.assert_close(result, (plain.float() + change).to(dtype))


@pytest.mark.parametrize(("after", "computes_more"), [(6, False), (7, True)])
def test_a_run_in_which_something_was_forgotten_is_left_as_it_is(
    net: nn.Module, after: int, computes_more: bool
) -> None:
    """What the run began with is not what the result comes from, even if its ticks are those that the weights are for."""

    def forget(i: int) -> None:
        scope = innermost()
        if i == after and scope is not None and scope.run is not None:
            scope.run.forget()

    schedule = planned(net)
    plain, _, _ = replayed(net, ReplayConfig(schedule=schedule), between=forget)
    result, _, told = replayed(net, ReplayConfig(schedule=corrected(schedule)), between=forget)
    assert (told.computed_ticks != schedule.computed_ticks) == computes_more
    assert torch.equal(result, plain)


def test_a_run_whose_batch_grows_is_left_as_it_is(net: nn.Module) -> None:
    schedule = planned(net)
    tick = schedule.computed_ticks[1]
    plain, _, _ = replayed(net, ReplayConfig(schedule=schedule), grows_at=tick)
    result, _, told = replayed(net, ReplayConfig(schedule=corrected(schedule)), grows_at=tick)
    assert told.computed_ticks == schedule.computed_ticks
    assert torch.equal(result, plain)


@pytest.mark.parametrize("changed", [{"rectify": False}, {"max_consecutive_reuses": 1}])
def test_weights_count_where_they_are_wanted_and_fit(net: nn.Module, changed: dict[str, Any]) -> None:
    schedule = planned(net)
    plain, _, _ = replayed(net, ReplayConfig(schedule=schedule, **changed))
    result, _, _ = replayed(net, ReplayConfig(schedule=corrected(schedule), **changed))
    assert torch.equal(result, plain)


@pytest.mark.parametrize(
    "other",
    [
        {"guidance": Guidance(5.0)},
        {"adds_noise": True},
        {"quantization": "int8"},
        {"num_ticks": 20, "sigmas": None},
        {"influence": None},
        {"influence": ((-0.2,) * STEPS,) * (STEPS + 1)},
    ],
    ids=["guidance", "noise", "weights", "ticks", "unknown steps", "other steps"],
)
def test_weights_are_for_runs_of_their_own_kind(
    net: nn.Module, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = planned(net)
    told = corrected(replace(schedule, predictor={**schedule.predictor, GUIDANCE_SCALE: 3.0}))
    config, seen, ask = ReplayConfig(schedule=told, resample=True), list[RunFacts](), ReplayConfig.last_step
    monkeypatch.setattr(ReplayConfig, "last_step", lambda self, run: seen.append(run))
    replayed(net, config)
    own = replace(seen[0], guidance=Guidance(3.0))
    first, *of_tick = told.corrections[LAST_STEP].tolist()
    computed = told.computed_ticks
    assert ask(config, own) == (first, *(of_tick[i] if i in computed else None for i in range(STEPS)))
    assert ask(config, replace(own, guidance=Guidance(3.1))) is not None  # loops show it rounded
    assert ask(config, replace(own, **other)) is None


def test_weights_are_left_out_of_runs_of_other_lengths(net: nn.Module) -> None:
    schedule = planned(net)
    plain, _, _ = replayed(net, ReplayConfig(schedule=schedule, resample=True), steps=20)
    result, _, _ = replayed(net, ReplayConfig(schedule=corrected(schedule), resample=True), steps=20)
    assert torch.equal(result, plain)


def test_one_tensor_is_kept_and_counted(net: nn.Module) -> None:
    schedule = planned(net)
    plain, more = (
        replayed(net, ReplayConfig(schedule=one))[2].cache_bytes for one in (schedule, corrected(schedule))
    )
    assert more - plain == 4 * torch.Size(SHAPE).numel()


def test_weights_for_another_number_of_ticks_are_refused(net: nn.Module) -> None:
    schedule = planned(net)
    wrong = with_corrections(schedule, {LAST_STEP: torch.zeros(STEPS)})
    with pytest.raises(ScheduleError, match="one more than the run has ticks: tune again"):
        accelerate(net, replace(ReplayConfig(schedule=schedule), schedule=wrong))


def added_to(i: int, sample: Tensor) -> Tensor:
    """In place, after one step."""
    return sample.add_(0.01) if i == 5 else sample


@pytest.mark.parametrize(
    ("changed", "is_corrected"),
    [
        (lambda i, sample: sample.clone(), True),
        (lambda i, sample: sample + 0.01 if i == 5 else sample, False),
        (added_to, False),
    ],
    ids=["copied", "replaced", "in place"],
)
def test_a_loop_that_replaces_its_sample_is_left_as_it_is(
    net: nn.Module, changed: Callable[[int, Tensor], Tensor], is_corrected: bool
) -> None:
    schedule = planned(net)
    plain, _, _ = replayed(net, ReplayConfig(schedule=schedule), changed=changed)
    result, _, told = replayed(net, ReplayConfig(schedule=corrected(schedule)), changed=changed)
    assert torch.equal(result, plain) != is_corrected
    assert any("the last step is not corrected" in note for note in told.notes) != is_corrected


def test_a_run_whose_guidance_changes_is_left_as_it_is(net: nn.Module) -> None:
    """Another pass is called from some tick on, or the pipeline's scale changes."""

    def scale_changes(i: int) -> None:
        scope = innermost()
        if i == 5 and scope is not None and scope.run is not None:
            scope.run.timetable.guidance_changes(i + 1)

    schedule = planned(net)
    ends = {"guided_from": 0, "guided_until": 6}
    for options in (ends, {"guided_from": 6}, {"between": scale_changes}):
        plain, _, _ = replayed(net, ReplayConfig(schedule=schedule), **options)
        result, _, _ = replayed(net, ReplayConfig(schedule=corrected(schedule)), **options)
        assert torch.equal(result, plain)


class Plain:
    """Times of a run whose outputs are velocities."""

    def are_comparable(self, tick: int, later: int) -> bool:
        return True

    def parametrisation(self, tick: int) -> tuple[float, float]:
        return 1.0, 0.0


@pytest.mark.parametrize("later", [("u", "c"), ("c",)])
def test_guidance_passes_are_the_same_at_all_steps(later: tuple[str, ...]) -> None:
    correction, scheduler = (
        LastStep(cast(Timetable, Plain()), (0.5, 0.25, 0.25)),
        FlowMatchEulerDiscreteScheduler(),
    )
    scheduler.set_timesteps(2)
    sample = torch.ones(SHAPE)
    for tick, passes in enumerate([("u", "c"), later]):
        called = TickCalls(tuple(("net", name, 2) for name in passes), frozenset({Decision.COMPUTE}))
        call = StepCall(torch.ones(SHAPE), scheduler.timesteps[tick], sample, {})
        assert correction.stepping(scheduler, tick, call, called) == call
        sample = torch.zeros(SHAPE)
        correction.stepped(sample)
    assert correction.is_missing == (later == ("c",))
    assert float(sample.mean()) == (0.0 if later == ("c",) else 1.0)


def expecting(net: nn.Module) -> Schedule:
    """A corrected schedule whose error was measured."""
    return replace(corrected(planned(net)), measured={"expected_error": 0.01})


def test_an_error_is_expected_only_of_runs_that_are_corrected(net: nn.Module) -> None:
    schedule = expecting(net)
    _, _, told = replayed(net, ReplayConfig(schedule=schedule))
    assert told.expected_error == 0.01
    assert not told.notes
    others: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"rectify": False}, {}),
        ({"hindsight": False}, {}),
        ({"max_consecutive_reuses": 1}, {}),
        ({}, {"named": False}),
        ({}, {"guided_from": 6}),
    ]
    for options, run in others:
        _, _, told = replayed(net, ReplayConfig(schedule=schedule, **options), **run)
        assert told.expected_error is None, (options, run)
        assert not any("other options" in note for note in told.notes)
    dropped = replace(schedule, fitted_with="other")
    with pytest.warns(UserWarning, match="they are dropped"):
        _, _, told = replayed(net, ReplayConfig(schedule=dropped))
    assert told.expected_error is None


def test_a_corrected_run_is_frozen_with_its_correction(net: nn.Module) -> None:
    schedule = expecting(net)
    result, _, told = replayed(net, ReplayConfig(schedule=schedule))
    frozen = told.to_schedule()
    assert torch.equal(frozen.corrections[LAST_STEP], schedule.corrections[LAST_STEP])
    again, _, told_again = replayed(net, ReplayConfig(schedule=frozen))
    assert torch.equal(again, result)
    assert told_again.expected_error == 0.01
    _, _, uncorrected = replayed(net, ReplayConfig(schedule=schedule), guided_from=6)
    assert not uncorrected.to_schedule().corrections
    assert uncorrected.to_schedule().expected_error is None


def test_a_schedule_of_a_loop_knows_its_noise_scheduler(net: nn.Module) -> None:
    assert planned(net).noise_scheduler == "FlowMatchEulerDiscreteScheduler"


def test_other_options_of_the_noise_scheduler_are_told(net: nn.Module) -> None:
    schedule = planned(net)
    row = schedule.predictor["influence"]
    config = ReplayConfig(
        schedule=replace(schedule, predictor={**schedule.predictor, "influence": [2 * x for x in row]})
    )
    _, _, told = replayed(net, config)
    assert any(
        "made with other options of FlowMatchEuler" in remark for remark in told.records[0].remarks.values()
    )
    older = {name: value for name, value in schedule.predictor.items() if name != "influence"}
    _, _, told = replayed(net, ReplayConfig(schedule=replace(schedule, predictor=older)))
    assert not told.records[0].remarks


@pytest.mark.parametrize("kind", [torch.bool, torch.int64])
def test_weights_are_fractions(net: nn.Module, kind: torch.dtype) -> None:
    schedule = planned(net)
    wrong = with_corrections(schedule, {LAST_STEP: torch.ones(1 + STEPS, dtype=kind)})
    with pytest.raises(ScheduleError, match="must hold fractions"):
        accelerate(net, ReplayConfig(schedule=wrong))


def test_a_weight_of_zero_is_a_weight(net: nn.Module) -> None:
    schedule = planned(net)
    weights = torch.zeros(1 + STEPS)
    weights[0] = 0.25
    plain, shown, _ = replayed(net, ReplayConfig(schedule=schedule))
    result, _, _ = replayed(net, ReplayConfig(schedule=with_corrections(schedule, {LAST_STEP: weights})))
    assert shown.first is not None
    torch.testing.assert_close(result, plain + 0.25 * shown.first)


def test_the_report_of_a_corrected_run_can_be_saved(net: nn.Module, tmp_path: Path) -> None:
    _, _, told = replayed(net, ReplayConfig(schedule=corrected(planned(net))))
    told.save(tmp_path / "report.json")
    assert f'"{LAST_STEP}"' in (tmp_path / "report.json").read_text()


def test_an_error_that_was_measured_with_hindsight_is_not_expected_without(net: nn.Module) -> None:
    """A loop that names no noise scheduler has none."""
    schedule = replace(planned(net), measured={"expected_error": 0.01})
    errors = {
        named: replayed(net, ReplayConfig(schedule=schedule), named=named)[2].expected_error
        for named in (True, False)
    }
    assert errors == {True: 0.01, False: None}
