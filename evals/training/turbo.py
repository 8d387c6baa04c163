"""The turbo testbed: the sd3 testbed, distilled so that four steps without guidance give what its guided steps give."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import StableDiffusion3Pipeline
from torch import Tensor

from diffcache.evals.testbeds import emoji, zoo
from diffcache.evals.training.common import save_pipeline
from diffcache.evals.training.distilling import Distillation, Velocity, distil
from diffcache.evals.training.emoji import LENGTH
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Progress, Training

STEPS = zoo.STEPS["turbo"]
_SUBSTEPS = (5, 8, 14, 1)  # of the teacher in each step of the student
_SHARES = (0.3, 0.3, 0.37, 0.03)  # of the steps in a batch; the last one is from noise level 0.009 to 0


@dataclass(frozen=True)
class Prompts:
    """Every caption encoded: `states` [n, tokens, width] and `pooled` [n, width], the empty prompt as the last one."""

    states: Tensor
    pooled: Tensor


@torch.no_grad()
def encoded(pipe: StableDiffusion3Pipeline) -> Prompts:
    """The captions of all emoji, encoded."""
    states, _, pooled, _ = pipe.encode_prompt(
        [*emoji.captions(), ""], None, None, do_classifier_free_guidance=False, max_sequence_length=LENGTH
    )
    return Prompts(states, pooled)


def velocity(transformer: Any, prompts: Prompts) -> Velocity:
    """The denoiser's answer to prompts by their rows."""

    def answered(latents: Tensor, sigma: Tensor, rows: Tensor) -> Tensor:
        output: Tensor = transformer(
            hidden_states=latents,
            timestep=1000 * sigma,
            encoder_hidden_states=prompts.states[rows],
            pooled_projections=prompts.pooled[rows],
            return_dict=False,
        )[0]
        return output

    return answered


def guided(velocity: Velocity, scale: float, empty: int) -> Velocity:
    """The velocity with classifier-free guidance against the empty prompt, whose row is `empty`."""

    def answered(latents: Tensor, sigma: Tensor, rows: Tensor) -> Tensor:
        both = torch.cat([torch.full_like(rows, empty), rows])
        without, asked = velocity(latents.repeat(2, 1, 1, 1), sigma.repeat(2), both).chunk(2)
        return without + scale * (asked - without)

    return answered


def train(training: Training) -> Progress:
    """Distils the sd3 testbed and saves the pipeline to `training.out`; only the denoiser changes."""
    torch.manual_seed(training.seed)
    device, captions = training.device, len(emoji.captions())
    pipe = zoo.load("sd3").to(device)
    pipe.scheduler.set_timesteps(STEPS)
    prompts = encoded(pipe)
    student = velocity(torch.compile(pipe.transformer), prompts)
    teacher = guided(student, zoo.sample_call("sd3", 0, n=1)["guidance_scale"], captions)
    sigmas = pipe.scheduler.sigmas.to(device)
    what = Distillation(student, teacher, (8, 16, 16), captions, sigmas, _SUBSTEPS, _SHARES)

    def preview(path: Path) -> None:
        save_grid(pipe(**zoo.sample_call("turbo", 0, STEPS, n=16))[0], path)

    progress = distil(pipe.transformer, what, 1.5e-3, training, preview)
    save_pipeline(pipe, training.out)
    return progress
