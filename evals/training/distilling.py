"""Distillation to a few steps: the student learns the mean velocity over each of its steps along the teacher's trajectories.

Progressive distillation (Salimans and Ho 2022) at once from many steps to few: trajectories of the teacher are rendered once. The
student begins a step where its own last step has led when the trajectory was drawn before, so it learns to make up for its
own errors too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffcache.evals.training.common import is_block_matrix, made_once
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

_BATCH = 32
_TRAJECTORIES = 2048
_SMALLEST_STEP = 0.1

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From latents [n, ...], noise levels [n] and rows of prompts [n] to the velocity at the latents."""


@dataclass(frozen=True)
class Distillation:
    """What is distilled.

    Attributes:
        student: the denoiser's answers; they are trained.
        teacher: those that are rendered before the training begins.
        latents: shape of one sample's.
        prompts: how many rows of prompts there are.
        sigmas: noise levels between the student's steps [steps + 1].
        substeps: of the teacher in each step of the student.
        shares: of the student's steps in a batch.
    """

    student: Velocity
    teacher: Velocity
    latents: tuple[int, ...]
    prompts: int
    sigmas: Tensor
    substeps: Sequence[int]
    shares: Sequence[float]


def trajectory(
    teacher: Velocity, noise: Tensor, rows: Tensor, sigmas: Tensor, substeps: Sequence[int]
) -> Tensor:
    """The teacher's latents at each of `sigmas` [k + 1], [n, k + 1, ...], beginning with the noise [n, ...]."""
    latents, found = noise, [noise]
    for first, last, count in zip(sigmas[:-1], sigmas[1:], substeps, strict=True):
        levels = torch.linspace(float(first), float(last), count + 1, device=noise.device)
        for now, then in pairwise(levels):
            latents = latents + (then - now) * teacher(latents, now.expand(len(latents)), rows)
        found.append(latents)
    return torch.stack(found, 1)


@torch.no_grad()
def trajectories(what: Distillation) -> Tensor:
    """2048 of them [2048, steps + 1, ...] in float16; row i begins with noise of seed i, for prompt i % prompts."""
    found = []
    for rows in torch.split(torch.arange(_TRAJECTORIES), _BATCH):
        noise = [torch.randn(what.latents, generator=torch.Generator().manual_seed(i)) for i in rows.tolist()]
        device = what.sigmas.device
        of_prompts, begin = (rows % what.prompts).to(device), torch.stack(noise).to(device)
        path = trajectory(what.teacher, begin, of_prompts, what.sigmas, what.substeps)
        found.append(path.half().cpu())
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


def distil(
    transformer: Any, what: Distillation, lr: float, training: Training, preview: Callable[[Path], None]
) -> Progress:
    """Trains the denoiser to go the teacher's way in few steps."""
    device, sigmas = training.device, what.sigmas
    training.folder.mkdir(parents=True, exist_ok=True)
    paths = made_once(training.work / f"{training.name}.pt", lambda: trajectories(what))
    begun = paths[:, :-1].clone()
    shares = torch.tensor(what.shares, device=device)

    def loss(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(paths), (_BATCH,), generator=generator, device=device).cpu()
        step = torch.multinomial(shares, _BATCH, replacement=True, generator=generator)
        latents, at = begun[rows, step.cpu()].to(device).float(), step.cpu()
        output = what.student(latents, sigmas[step], rows.to(device) % what.prompts)
        target = mean_velocity(paths[rows].to(device).float(), latents, step, sigmas)
        size = (sigmas[step + 1] - sigmas[step]).view(-1, *[1] * (latents.ndim - 1))
        led = (latents + size * output.detach()).half().cpu()
        goes_on = at + 1 < len(what.substeps)
        begun[rows[goes_on], at[goes_on] + 1] = led[goes_on]
        error: Tensor = (output - target).square().mean()
        return error

    optimiser = Optimiser(transformer, is_block_matrix)
    return fit(transformer, loss, optimiser, Pace(lr=lr, checkpoint_every=120), training, preview)
