"""Training of the next-scale model: first frames of bouncing shapes, by class."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor
from torch.nn import functional

from diffcache.evals.testbeds import procedural, zoo
from diffcache.evals.testbeds.next_scale_model import SIDES, NextScale, causal_mask
from diffcache.evals.training.causal_wan import clip_latents
from diffcache.evals.training.common import is_block_matrix
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

_BATCH = 32


def train(training: Training) -> Progress:
    """Trains on the first latent frames of the causal testbed's clips, and saves to `training.out`."""
    torch.manual_seed(training.seed)
    vae = AutoencoderKLWan.from_pretrained(zoo.FOLDER / "wan" / "vae")
    clips, captions = clip_latents(vae, training.work / "causal_wan", torch.device("cpu"))
    latents = clips[:, :, 0].float().to(training.device)
    labels = torch.tensor([procedural.label_of(caption) for caption in captions], device=training.device)
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
