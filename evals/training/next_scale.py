"""Training of the next-scale model: first frames of bouncing shapes, by class."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor
from torch.nn import functional

from diffcache.evals.testbeds import zoo
from diffcache.evals.testbeds.bouncing import bouncing_clips
from diffcache.evals.testbeds.next_scale_model import SIDES, NextScale, causal_mask
from diffcache.evals.training.causal_wan import encoded
from diffcache.evals.training.common import is_block_matrix, made_once
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser
from diffcache.evals.training.wan_vae import SIDE

_BATCH = 16
_POOL, _POOL_SEED = 12_000, 80_000


def train(training: Training) -> Progress:
    """Trains on first frames of bouncing shapes, and saves to `training.out`."""
    torch.manual_seed(training.seed)
    training.folder.mkdir(parents=True, exist_ok=True)
    vae = AutoencoderKLWan.from_pretrained(zoo.FOLDER / "wan" / "vae")
    frames = bouncing_clips(_POOL, _POOL_SEED, SIDE, frames=1)
    kept = made_once(training.folder / "latents.pt", lambda: encoded(vae, frames.pixels)[:, :, 0])
    latents, labels = kept.float().to(training.device), frames.labels.to(training.device)
    model = NextScale().to(training.device)
    model.measure_sizes(latents)
    mask = causal_mask().to(training.device)

    def loss(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(latents), (_BATCH,), generator=generator, device=training.device)
        inputs, signs, _ = model.decomposed(latents[rows])
        logits = model(torch.cat(inputs, 1), labels[rows], range(len(SIDES)), mask)
        return functional.binary_cross_entropy_with_logits(logits, torch.cat(signs, 1))

    progress = fit(model, loss, Optimiser(model, is_block_matrix), Pace(lr=3e-3), training)
    model.save(training.out / "model.safetensors")
    return progress
