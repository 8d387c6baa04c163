"""Calls of a noise scheduler's `step` that are made again."""

from __future__ import annotations

import copy

import pytest
import torch
from diffusers import DDIMScheduler, DPMSolverMultistepScheduler, UniPCMultistepScheduler

from diffcache.noise_schedulers.step_calls import StepCall, copy_of, step_call_of

OUTPUT, SAMPLE = torch.linspace(-1, 1, 6).reshape(1, 1, 2, 3), torch.ones(1, 1, 2, 3)


@pytest.mark.parametrize("named", [0, 1, 2, 3])
def test_arguments_are_known_by_place_and_by_name(named: int) -> None:
    given = {"model_output": OUTPUT, "timestep": 7, "sample": SAMPLE}
    args, kwargs = [*given.values()][:named], dict([*given.items()][named:])
    call = step_call_of(DDIMScheduler(), args, {**kwargs, "eta": 0.0})
    assert call is not None
    assert (call.output, call.timestep, call.sample) == (OUTPUT, 7, SAMPLE)
    assert call.options == {"eta": 0.0}
    assert call.arguments == {**given, "eta": 0.0}


def test_calls_with_learned_variances_are_not_known() -> None:
    assert step_call_of(DDIMScheduler(), [torch.cat([OUTPUT, OUTPUT], dim=1), 7, SAMPLE], {}) is None
    assert step_call_of(DDIMScheduler(), [OUTPUT, 7], {}) is None


@pytest.mark.parametrize("cls", [DPMSolverMultistepScheduler, UniPCMultistepScheduler])
def test_a_copy_goes_the_way_of_the_original_which_stays_where_it_is(cls: type) -> None:
    noise_scheduler = cls()
    noise_scheduler.set_timesteps(5)
    first, *others = (StepCall(OUTPUT, time, SAMPLE, {}) for time in noise_scheduler.timesteps)
    first.made_by(noise_scheduler)
    untouched, copied = copy.deepcopy(noise_scheduler), copy_of(noise_scheduler)
    found = [call.made_by(copied) for call in others]
    expected = [call.made_by(noise_scheduler) for call in others]
    assert all(map(torch.equal, found, expected))
    assert all(map(torch.equal, found, [call.made_by(untouched) for call in others]))
