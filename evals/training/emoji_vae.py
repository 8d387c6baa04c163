"""The autoencoder that the emoji testbeds share: 64 x 64 RGB to 16 x 16 x 8 latents."""

from __future__ import annotations

import torch

from diffcache.evals.testbeds.emoji import every_code
from diffcache.evals.training import emoji, vae
from diffcache.evals.training.loop import Progress, Training


def train(training: Training) -> Progress:
    """Trains the autoencoder and saves it to `training.folder`/vae."""
    torch.manual_seed(training.seed)
    cutouts = emoji.drawings(training.work, every_code())
    pool, _ = emoji.pictures(cutouts, per_drawing=12, seed=61_000 + training.seed)
    return vae.fit_autoencoder(vae.build(), pool, training)
