"""The turbo testbed: the sd3 testbed, distilled so that four steps without guidance give what its guided steps give.

Progressive distillation (Salimans and Ho 2022) at once from many steps to four: trajectories of the teacher are rendered once,
and the student learns the mean velocity over each of its four steps. It begins a step where its own last step has led when
the trajectory was drawn before, so it learns to make up for its own errors too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from diffusers import StableDiffusion3Pipeline
from torch import Tensor

from diffcache.evals.testbeds import emoji, zoo
from diffcache.evals.training.common import is_block_matrix, made_once, save_pipeline
from diffcache.evals.training.emoji import LENGTH
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

STEPS = zoo.STEPS["turbo"]
_BATCH = 32
_TRAJECTORIES = 2048
_SUBSTEPS = (5, 8, 14, 1)  # of the teacher in each step of the student
_SHARES = (0.3, 0.3, 0.37, 0.03)  # of the steps in a batch; the last one is from noise level 0.009 to 0
_SMALLEST_STEP = 0.1

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From latents [n, 8, 16, 16], noise levels [n] and rows of prompts [n] to the velocity at the latents."""


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


def trajectory(teacher: Velocity, noise: Tensor, rows: Tensor, sigmas: Tensor) -> Tensor:
    """The teacher's latents at each of `sigmas` [k + 1], [n, k + 1, ...], beginning with the noise [n, ...]."""
    latents, found = noise, [noise]
    for first, last, substeps in zip(sigmas[:-1], sigmas[1:], _SUBSTEPS, strict=True):
        levels = torch.linspace(float(first), float(last), substeps + 1, device=noise.device)
        for now, then in pairwise(levels):
            latents = latents + (then - now) * teacher(latents, now.expand(len(latents)), rows)
        found.append(latents)
    return torch.stack(found, 1)


@torch.no_grad()
def trajectories(teacher: Velocity, sigmas: Tensor, captions: int) -> Tensor:
    """2048 of them [2048, 5, 8, 16, 16] in float16; that of row i begins with noise of seed i, for caption i % captions."""
    found = []
    for rows in torch.split(torch.arange(_TRAJECTORIES), _BATCH):
        noise = [torch.randn(8, 16, 16, generator=torch.Generator().manual_seed(i)) for i in rows.tolist()]
        device = sigmas.device
        of_prompts = (rows % captions).to(device)
        found.append(trajectory(teacher, torch.stack(noise).to(device), of_prompts, sigmas).half().cpu())
        print(f"trajectories: {int(rows[-1]) + 1} of {_TRAJECTORIES}", flush=True)
    return torch.cat(found)


def mean_velocity(path: Tensor, begun: Tensor, step: Tensor, sigmas: Tensor) -> Tensor:
    """The velocity that leads from `begun` to the teacher's latents at the end of a step.

    A very small step cannot make up for an error of the steps before; the teacher's own mean velocity is learnt there.

    Args:
        path: the teacher's trajectories [n, k + 1, ...].
        begun: where the student is before the step [n, ...].
        step: from 0, [n].
        sigmas: noise levels between steps [k + 1].
    """
    rows = torch.arange(len(path), device=path.device)
    size = (sigmas[step + 1] - sigmas[step]).view(-1, *[1] * (begun.ndim - 1))
    first = torch.where(size.abs() < _SMALLEST_STEP, path[rows, step], begun)
    return (path[rows, step + 1] - first) / size


def train(training: Training) -> Progress:
    """Distils the sd3 testbed and saves the pipeline to `training.out`; only the denoiser changes."""
    torch.manual_seed(training.seed)
    device, captions = training.device, len(emoji.captions())
    pipe = zoo.load("sd3").to(device)
    pipe.scheduler.set_timesteps(STEPS)
    sigmas = pipe.scheduler.sigmas.to(device)
    prompts = encoded(pipe)
    student = velocity(torch.compile(pipe.transformer), prompts)
    teacher = guided(student, zoo.sample_call("sd3", 0, n=1)["guidance_scale"], captions)
    training.folder.mkdir(parents=True, exist_ok=True)
    paths = made_once(training.work / "turbo.pt", lambda: trajectories(teacher, sigmas, captions))
    begun = paths[:, :-1].clone()

    def loss(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(paths), (_BATCH,), generator=generator, device=device).cpu()
        step = torch.multinomial(
            torch.tensor(_SHARES, device=device), _BATCH, replacement=True, generator=generator
        )
        latents, at = begun[rows, step.cpu()].to(device).float(), step.cpu()
        output = student(latents, sigmas[step], rows.to(device) % captions)
        target = mean_velocity(paths[rows].to(device).float(), latents, step, sigmas)
        size = (sigmas[step + 1] - sigmas[step])[:, None, None, None]
        led = (latents + size * output.detach()).half().cpu()
        goes_on = at + 1 < STEPS
        begun[rows[goes_on], at[goes_on] + 1] = led[goes_on]
        error: Tensor = (output - target).square().mean()
        return error

    def preview(path: Path) -> None:
        save_grid(pipe(**zoo.sample_call("turbo", 0, STEPS, n=16))[0], path)

    optimiser = Optimiser(pipe.transformer, is_block_matrix)
    progress = fit(
        pipe.transformer, loss, optimiser, Pace(lr=1.5e-3, checkpoint_every=120), training, preview
    )
    save_pipeline(pipe, training.out)
    return progress
