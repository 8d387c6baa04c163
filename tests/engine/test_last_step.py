"""The sample after a run's last step is corrected by a weighted sum of what the run began with and of what it computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn

from diffcache import Schedule, accelerate, denoising_run, report, restore
from diffcache.config import RunFacts
from diffcache.engine.observers import Observer, observed
from diffcache.engine.scopes import innermost
from diffcache.profiling.calibrating.corrections import with_corrections
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.schedule_fields import LAST_STEP
from diffcache.reports.run_report import RunReport
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.guidance import Guidance
from diffcache.schedulers.schedule import GUIDANCE_SCALE

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
) -> Tensor:
    noise_scheduler = FlowMatchEulerDiscreteScheduler()
    noise_scheduler.set_timesteps(steps)
    sample = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.no_grad(), denoising_run(net, num_steps=steps, noise_scheduler=noise_scheduler) as loop:
        for i, timestep in enumerate(noise_scheduler.timesteps):
            loop.begin_step(i)
            sample = torch.cat([sample, sample]) if i == grows_at else sample
            velocity = net(sample, timestep.expand(len(sample)).to(dtype))
            sample = noise_scheduler.step(velocity, timestep, sample)[0]
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
    ],
    ids=["guidance", "noise", "weights", "ticks"],
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
    assert ask(config, own) == tuple(told.corrections[LAST_STEP].tolist())
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
    with pytest.raises(ScheduleError, match="one number more than the run has ticks"):
        accelerate(net, replace(ReplayConfig(schedule=schedule), schedule=wrong))
