"""The autoencoder of the fashion testbed: 32 x 32 RGB to 16 x 16 x 4 latents."""

from __future__ import annotations

import torch

from diffcache.evals.training import fashion_pictures, vae
from diffcache.evals.training.loop import Progress, Training


def train(training: Training) -> Progress:
    """Trains the autoencoder and saves it to `training.folder`/vae."""
    torch.manual_seed(training.seed)
    pool, _ = fashion_pictures.pictures(training.work)
    model = vae.build(widths=(16, 32), channels=4, side=fashion_pictures.SIDE)
    return vae.fit_autoencoder(model, pool, training)
