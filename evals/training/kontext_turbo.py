"""The kontext_turbo testbed: the kontext testbed, distilled so that four steps give what its 28 steps give.

The references are those of the calibration half, and copies of them that are mirrored or moved by up to four pixels. No held-out
reference and no held-out prompt is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import FluxKontextPipeline
from torch import Tensor
from torch.nn import functional

from diffcache.evals.testbeds import edits, zoo
from diffcache.evals.training.common import encode, save_pipeline
from diffcache.evals.training.distilling import Distillation, Velocity, distil
from diffcache.evals.training.flux import pack
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.kontext import LENGTH
from diffcache.evals.training.loop import Progress, Training

STEPS = zoo.STEPS["kontext_turbo"]
_SUBSTEPS = (5, 6, 7, 8)  # of the teacher in each step of the student
_SHARES = (0.25, 0.25, 0.25, 0.25)
_TOKENS, _WIDTH = 64, 32
_MOVES = ((0, 0), (4, 0), (-4, 0), (0, 4), (0, -4))


@dataclass(frozen=True)
class Edits:
    """What is asked for: the prompts encoded, and the tokens of the references [n, 64, 32]."""

    states: Tensor
    pooled: Tensor
    references: Tensor


@torch.no_grad()
def encoded(pipe: FluxKontextPipeline, device: torch.device) -> Edits:
    """Every calibration prompt with each copy of its reference."""
    asked = zoo.prompts("kontext", 10_000, "calibration")
    states, pooled, _ = pipe.encode_prompt(asked, None, max_sequence_length=LENGTH)
    pictures = edits.references([edits.edited(prompt) for prompt in asked])
    copies = torch.cat([copy for move in _MOVES for copy in _copies(pictures, move)])
    latents = encode(pipe.vae, copies, device).float()
    number = len(copies) // len(asked)
    return Edits(states.repeat(number, 1, 1), pooled.repeat(number, 1), pack(latents))


def velocity(transformer: Any, asked: Edits) -> Velocity:
    """The denoiser's answer to edits by their rows."""
    device = asked.states.device
    ids = FluxKontextPipeline._prepare_latent_image_ids(1, 8, 8, device, torch.float32)
    both = torch.cat([ids, ids + torch.tensor([1.0, 0.0, 0.0], device=device)])
    text_ids = torch.zeros(asked.states.shape[1], 3, device=device)

    def answered(latents: Tensor, sigma: Tensor, rows: Tensor) -> Tensor:
        output: Tensor = transformer(
            hidden_states=torch.cat([latents, asked.references[rows]], 1),
            timestep=sigma,
            pooled_projections=asked.pooled[rows],
            encoder_hidden_states=asked.states[rows],
            txt_ids=text_ids,
            img_ids=both,
            return_dict=False,
        )[0]
        return output[:, : latents.shape[1]]

    return answered


def sigmas(pipe: FluxKontextPipeline) -> Tensor:
    """The noise levels at which the pipeline takes its four steps [5]."""
    config = pipe.scheduler.config
    slope = (config.max_shift - config.base_shift) / (config.max_image_seq_len - config.base_image_seq_len)
    mu = config.base_shift + slope * (_TOKENS - config.base_image_seq_len)
    pipe.scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / STEPS, STEPS), mu=mu)
    found: Tensor = pipe.scheduler.sigmas
    return found


def train(training: Training) -> Progress:
    """Distils the kontext testbed and saves the pipeline to `training.out`; only the denoiser changes."""
    torch.manual_seed(training.seed)
    device = training.device
    pipe = zoo.load("kontext").to(device)
    asked = encoded(pipe, device)
    student = velocity(torch.compile(pipe.transformer), asked)
    levels = sigmas(pipe).to(device)
    shape = (_TOKENS, _WIDTH)
    what = Distillation(student, student, shape, len(asked.states), levels, _SUBSTEPS, _SHARES)

    def preview(path: Path) -> None:
        call = zoo.sample_call("kontext_turbo", 0, STEPS, n=16)
        save_grid(torch.cat([call["image"], pipe(**call)[0]]), path)

    progress = distil(pipe.transformer, what, 1e-3, training, preview)
    save_pipeline(pipe, training.out)
    return progress


def _copies(pictures: Tensor, move: tuple[int, int]) -> list[Tensor]:
    """Pictures [n, 3, 64, 64] moved by (rows, columns), and the same mirrored; what comes in at the edge is the edge's colour."""
    padded = functional.pad(pictures, (4, 4, 4, 4), mode="replicate")
    top, left = 4 + move[0], 4 + move[1]
    moved = padded[:, :, top : top + 64, left : left + 64]
    return [moved, moved.flip(3)]
