"""Copies of what is accelerated are plain: they run their own weights, without a cache."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import FluxImg2ImgPipeline, StableDiffusionImg2ImgPipeline
from support.harness import accelerated, plain, reference, render, reweighted
from zoo.pipelines import CASES

from diffcache import TargetError, accelerate, report


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, pickled], ids=["deepcopy", "copy", "pickle"])
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_copies_are_plain_and_run_their_own_weights(duplicate: Callable[[Any], Any], when: str) -> None:
    name = "WanPipeline"
    pipe = accelerated(name, "uniform", interval=2)
    copies = []

    def duplicating(pipe: Any, step: int, timestep: Any, kwargs: Any) -> Any:
        if step == 3:
            copies.append([duplicate(part) for part in (pipe.transformer, pipe, pipe.scheduler)])
        return kwargs

    if when != "before":
        render(pipe, name, callback_on_step_end=duplicating)
    if when != "during":
        copies = [[duplicate(part) for part in (pipe.transformer, pipe, pipe.scheduler)]]
    module, other, noise_scheduler = copies[0]
    assert type(module) is type(plain(name).transformer)
    assert type(other) is type(plain(name))
    assert type(noise_scheduler) is type(plain(name).scheduler)
    for copied in (module, other):
        with pytest.raises(TargetError):
            report(copied)
    assert torch.equal(render(other, name), reference(name))
    if duplicate is not copy.copy:
        other.transformer = reweighted(module)
        changed = CASES[name].build()
        changed.transformer = reweighted(changed.transformer)
        assert torch.equal(render(other, name), render(changed, name))
    render(accelerate(other, "uniform", interval=3), name)
    assert report(other).computed_ticks == [0, 3, 5]
    expected = render(accelerated(name, "uniform", interval=2), name)
    assert torch.equal(render(pipe, name), expected)


def test_pipelines_made_from_an_accelerated_one_are_plain() -> None:
    name, other = "FluxPipeline", "FluxImg2ImgPipeline"
    pipe = accelerated(name, "uniform", interval=2)
    image = render(pipe, name)
    made = FluxImg2ImgPipeline.from_pipe(pipe)
    made.set_progress_bar_config(disable=True)
    assert type(made) is FluxImg2ImgPipeline
    assert torch.equal(render(made, other), reference(other))
    back = type(plain(name)).from_pipe(made)
    back.set_progress_bar_config(disable=True)
    assert torch.equal(render(back, name), reference(name))
    accelerate(made, "uniform", interval=3)
    render(made, other)
    assert torch.equal(render(pipe, name), image)
    assert report(made).computed_ticks == [0, 3, 4]


def test_pipelines_made_of_the_components_of_an_accelerated_one_are_plain() -> None:
    pipe = accelerated("StableDiffusionPipeline", "uniform", interval=2)
    render(pipe, "StableDiffusionPipeline")
    made = StableDiffusionImg2ImgPipeline(**pipe.components, requires_safety_checker=False)
    made.set_progress_bar_config(disable=True)
    other = "StableDiffusionImg2ImgPipeline"
    assert torch.equal(render(made, other), reference(other))
