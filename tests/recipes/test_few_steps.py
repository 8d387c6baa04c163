"""Runs of few steps: what cannot be met is refused, and the report says what can be done."""

from __future__ import annotations

import pytest
import torch
from zoo.pipelines import CASES

from diffcache import accelerate, report, restore
from diffcache.config import RunFacts
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.errors import ConfigError


@pytest.mark.parametrize("config", [EvenConfig, TrajectoryConfig])
def test_a_speed_up_beyond_the_number_of_steps_is_refused(config) -> None:
    with pytest.raises(ConfigError, match="ask for 4 at most"):
        config(speedup=13).guards(RunFacts("Net", num_ticks=4))
    assert config(speedup=4).guards(RunFacts("Net", num_ticks=4)).warmup_steps == 1


@pytest.mark.parametrize("method", ["even", "trajectory"])
def test_a_single_step_is_computed_whatever_the_speed_up(method) -> None:
    case = CASES["FluxPipeline"]
    pipe = case.build()
    plain = case.render(pipe, 0, 1)
    accelerate(pipe, method, speedup=2)
    assert torch.equal(case.render(pipe, 0, 1), plain)
    (note,) = report(pipe).notes
    assert "too few steps to skip any (1 tick" in note


def test_a_refused_speed_up_leaves_the_pipeline_as_it_was() -> None:
    case = CASES["FluxPipeline"]
    pipe = case.build()
    plain = case.render(pipe, 0, 4)
    accelerate(pipe, speedup=5)
    with pytest.raises(ConfigError, match=r"speedup=5 cannot be met in 4 steps.*ask for 4 at most"):
        case.render(pipe, 0, 4)
    case.render(pipe, 0, 10)
    assert report(pipe).compute_fraction <= 0.2
    restore(pipe)
    assert torch.equal(case.render(pipe, 0, 4), plain)


@pytest.mark.parametrize("steps", [1, 2, 4, 6])
def test_the_default_says_what_few_steps_can_do(steps) -> None:
    case = CASES["FluxPipeline"]
    pipe = accelerate(case.build(), threshold=1e-6)
    case.render(pipe, 0, steps)
    (note,) = report(pipe).notes
    assert f"too few steps to skip any ({steps} tick" in note
    assert "rows= computes some tokens" in note
    assert ("speedup= skips some" in note) == (steps > 2)
    assert "fastercache" not in note  # there is one pass


def test_the_default_says_that_a_guidance_pass_can_be_saved() -> None:
    case = CASES["WanPipeline"]
    pipe = accelerate(case.build(), threshold=1e-6)
    case.render(pipe, 0, 4)
    (note,) = report(pipe).notes
    assert "fastercache rebuilds the unconditional pass" in note
