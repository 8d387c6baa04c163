"""Whoever attaches may choose a config for each call of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from support.harness import STEPS, render
from zoo.pipelines import CASES

from diffcache import (
    ConfigError,
    TargetError,
    UniformConfig,
    accelerate,
    denoising_run,
    plan,
    report,
    restore,
)
from diffcache.attach.attach import attach
from diffcache.attach.attachment import CallConfig

NAME = "WanPipeline"


class ByHeight:
    """Another interval for low pictures, and none for very low ones."""

    def __init__(self) -> None:
        self.calls: list[Mapping[str, Any]] = []

    def config_for(self, pipeline: Any, call: Mapping[str, Any]) -> CallConfig:
        self.calls.append(call)
        if call["height"] < 16:
            raise ConfigError("too low")
        return CallConfig(
            UniformConfig(interval=2 if call["height"] < 32 else 3), (f"{call['height']} high",)
        )


def test_each_call_is_run_with_the_config_that_was_chosen_for_it() -> None:
    pipe, chooser = CASES[NAME].build(), ByHeight()
    attach(pipe, UniformConfig(interval=5), chooser)
    for height, ticks in ((16, [0, 2, 4, 5]), (32, [0, 3, 5])):
        render(pipe, NAME, height=height)
        assert report(pipe).computed_ticks == ticks
        assert report(pipe).notes == [f"{height} high"]
        assert (
            list(plan(pipe, **{**CASES[NAME].call(0, STEPS), "height": height}).notes) == report(pipe).notes
        )
    assert chooser.calls[0]["num_inference_steps"] == STEPS
    assert report(pipe).options["interval"] == 5  # what was attached
    with pytest.raises(ConfigError, match="too low"):
        render(pipe, NAME, height=8)
    with pytest.raises(TargetError, match="max_cache_bytes"), denoising_run(pipe.transformer, 4):
        pass
    restore(pipe)
    attach(pipe, UniformConfig(interval=3))
    usual = render(accelerate(CASES[NAME].build(), "uniform", interval=3), NAME)
    assert torch.equal(render(pipe, NAME), usual)
