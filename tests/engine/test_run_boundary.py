"""A run leaves no trace in the next one, however it ended and whatever it was."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.harness import METHODS, STEPS, Abort, aborting, each_run, failing, fresh, part, render
from zoo.pipelines import CASES, with_noise_scheduler

from diffcache import report


@functools.cache
def clean(name: str, method: str, noise_scheduler: str | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """What a pipeline's first accelerated run renders and decides."""
    pipe = fresh(name, method)
    if noise_scheduler is not None:
        with_noise_scheduler(pipe, noise_scheduler)
    image = render(pipe, name)
    assert report(pipe).compute_fraction < 1
    return image, report(pipe).decisions


# -- what may come in between -------------------------------------------------------------------------------------


def raises(pipe: Any, name: str) -> None:
    with pytest.raises(Abort):
        render(pipe, name, seed=1, callback_on_step_end=aborting(3))


def raises_inside_the_denoiser(pipe: Any, name: str) -> None:
    with failing(part(pipe, CASES[name].denoisers[0]), call=2), pytest.raises(Abort):
        render(pipe, name, seed=1)


def other_resolution(pipe: Any, name: str) -> None:
    render(pipe, name, seed=1, height=32, width=16)


def other_batch(pipe: Any, name: str) -> None:
    many = "num_videos_per_prompt" if "Wan" in name else "num_images_per_prompt"
    render(pipe, name, seed=1, **{many: 2})


def fewer_steps(pipe: Any, name: str) -> None:
    render(pipe, name, seed=1, steps=3)


def more_steps(pipe: Any, name: str) -> None:
    render(pipe, name, seed=1, steps=9)


def other_dtype(pipe: Any, name: str) -> None:
    call = CASES[name].call(1, STEPS)
    pipe.to(torch.float64)
    pipe(**{key: v.double() if torch.is_tensor(v) else v for key, v in call.items()})
    pipe.to(torch.float32)


def other_noise_scheduler(pipe: Any, name: str) -> None:
    own = pipe.scheduler
    with_noise_scheduler(pipe, "DPM++" if "Flux" not in name else "FlowMatchEuler")
    render(pipe, name, seed=1)
    pipe.scheduler = own


def guidance_off(pipe: Any, name: str) -> None:
    scale = "true_cfg_scale" if "Flux" in name else "guidance_scale"
    render(pipe, name, seed=1, **{scale: 1.0})


def other_prompt(pipe: Any, name: str) -> None:
    embeds = CASES[name].call(0, 1)["prompt_embeds"]
    render(pipe, name, seed=1, prompt_embeds=embeds.flip(1))


INTERRUPTIONS: list[Callable[[Any, str], None]] = [
    raises,
    raises_inside_the_denoiser,
    other_resolution,
    other_batch,
    fewer_steps,
    more_steps,
    other_dtype,
    other_noise_scheduler,
    guidance_off,
    other_prompt,
]


@pytest.mark.parametrize("interruption", INTERRUPTIONS, ids=lambda function: function.__name__)
@each_run
def test_a_run_does_not_see_the_one_before(
    name: str, interruption: Callable[[Any, str], None], method: str
) -> None:
    image, decisions = clean(name, method)
    pipe = fresh(name, method)
    render(pipe, name, seed=2)
    interruption(pipe, name)
    assert torch.equal(render(pipe, name), image)
    assert report(pipe).decisions.equal(decisions)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["WanPipeline", "StableDiffusionPipeline"])
def test_a_noise_scheduler_that_is_replaced_is_followed(name: str, method: str) -> None:
    image, decisions = clean(name, method, "DPM++")
    pipe = fresh(name, method)
    render(pipe, name)
    old = pipe.scheduler
    with_noise_scheduler(pipe, "DPM++")
    kept = type(pipe.scheduler), type(old)
    assert torch.equal(render(pipe, name), image)
    assert report(pipe).decisions.equal(decisions)
    assert (type(pipe.scheduler), type(old)) == kept
