"""What a pipeline computes before its loop, as the keys and values of reference pictures (GLM-Image), is computed and is no loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import GlmImagePipeline
from PIL import Image
from support.harness import counted
from zoo.image_pipelines import PROMPTS
from zoo.pipeline_case import absent, calling, flow, kl_vae, model, quiet

from diffcache import ScheduleError, UniformConfig, accelerate, plan, report

CALL = calling(
    **PROMPTS,
    prior_token_ids=torch.arange(16).view(1, 16),
    image=[Image.new("RGB", (16, 16), "red")],
    prior_token_image_ids=[torch.arange(16)],
    source_image_grid_thw=[torch.tensor([[1, 4, 4]])],
    height=16,
    width=16,
    output_type="latent",
    guidance_scale=3.0,
)


def glm() -> Any:
    encoders = absent("tokenizer", "processor", "text_encoder", "vision_language_encoder")
    vae = kl_vae(latents_mean=[0.0] * 4, latents_std=[1.0] * 4)
    transformer = model("GlmImageTransformer2DModel")
    return quiet(GlmImagePipeline(vae=vae, transformer=transformer, scheduler=flow(), **encoders))


def test_a_run_after_it_is_recorded_and_replayed_on_a_fresh_pipeline() -> None:
    pipe = accelerate(glm(), speedup=2)
    image = pipe(**CALL(0, 12)).images
    told = report(pipe)
    assert not any("no noise scheduler is known" in note for note in told.notes)
    schedule = told.to_schedule()
    other = accelerate(glm(), schedule)
    with counted(other, ["transformer"]) as calls:
        assert torch.equal(other(**CALL(0, 12)).images, image)
    assert calls.total() == 1 + 2 * 6  # the reference picture, and half of twelve steps with two passes


def test_a_schedule_of_another_number_of_steps_is_refused_all_the_same() -> None:
    pipe = accelerate(glm(), "uniform", interval=2)
    pipe(**CALL(0, 6))
    schedule = report(pipe).to_schedule()
    with pytest.raises(ScheduleError, match="6 ticks and this run 8"):
        accelerate(pipe, schedule)(**CALL(0, 8))


def test_a_plan_is_of_the_loop() -> None:
    planned = plan(glm(), UniformConfig(interval=2), **CALL(0, 12))
    pipe = accelerate(glm(), "uniform", interval=2)
    pipe(**CALL(0, 12))
    assert "7 of 12 ticks" in str(planned)
    assert len(report(pipe).runs[-1].computed_ticks) == 7
