"""A loop that `denoising_end` stops early, as before a refiner, is known to be that short where the pipeline does not tell its number of timesteps."""

from __future__ import annotations

from typing import Any

import pytest
from diffusers import ClassifierFreeGuidance, EulerDiscreteScheduler
from diffusers.modular_pipelines.stable_diffusion_xl.modular_blocks_stable_diffusion_xl import (
    StableDiffusionXLCoreDenoiseStep,
)
from zoo.image_pipelines import BOTH_POOLED, PROMPTS
from zoo.modular_pipelines import assemble
from zoo.pipeline_case import calling, kl_vae, model

from diffcache import accelerate, report
from diffcache.noise_schedulers.timetable import timetable_of

CALL = calling(**PROMPTS, **BOTH_POOLED, height=16, width=16, output="latents")


def modular_sdxl() -> Any:
    return assemble(
        StableDiffusionXLCoreDenoiseStep(),
        unet=model("UNet2DConditionModel-sdxl"),
        vae=kl_vae(),
        scheduler=EulerDiscreteScheduler(),
        guider=ClassifierFreeGuidance(guidance_scale=3.0),
    )


def test_a_modular_pipeline_computes_half_of_the_loop_that_it_runs() -> None:
    pipe = accelerate(modular_sdxl(), "uniform", interval=2)
    pipe(**CALL(0, 10, denoising_end=0.7))
    told = report(pipe)
    assert told.computed_ticks == [0, 2, 4, 6]
    assert told.records[0].num_ticks == told.num_ticks == 7
    assert not told.notes


@pytest.mark.parametrize(
    ("num_timesteps", "denoising_end", "begin", "ticks"),
    [
        (None, 0.7, 0, 7),
        (None, 0.7, 4, 3),  # image to image, up to a refiner
        (None, None, 0, 10),
        (None, 1.0, 0, 10),
        (None, 0.0, 0, 10),
        (6, 0.7, 0, 6),  # the pipeline tells it
    ],
)
def test_the_length_of_the_loop(
    num_timesteps: int | None, denoising_end: float | None, begin: int, ticks: int
) -> None:
    noise_scheduler = EulerDiscreteScheduler()
    noise_scheduler.set_timesteps(10)
    noise_scheduler.set_begin_index(begin)
    assert timetable_of(noise_scheduler, num_timesteps, None, denoising_end).num_ticks == ticks
