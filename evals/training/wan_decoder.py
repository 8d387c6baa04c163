"""Sharper clips: trains only the decoder of the clip autoencoder, so that its latents stay as they are."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from diffcache.evals.testbeds import procedural
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser
from diffcache.evals.training.vae import reconstruction_loss
from diffcache.evals.training.wan_vae import FRAMES, SIDE

_BATCH = 6
_NOISE = 0.03  # deviation on normalised latents: about as much noise as a denoiser leaves


def train(training: Training) -> Progress:
    """Trains the decoder of `wan_vae` in `training.work` further, and saves it there."""
    torch.manual_seed(training.seed)
    device = training.device
    path = training.work / "wan_vae" / "vae"
    vae = AutoencoderKLWan.from_pretrained(path).to(device).requires_grad_(False)
    vae.decoder.requires_grad_(True)
    vae.post_quant_conv.requires_grad_(True)
    pixels = procedural.clips(3_000, seed=3000 + training.seed, side=SIDE, frames=FRAMES).pixels
    with torch.no_grad():
        chunks = [
            vae.encode((part * 2 - 1).to(device)).latent_dist.mode() for part in torch.split(pixels, 50)
        ]
    latents = torch.cat(chunks)
    spread = latents.std((0, 2, 3, 4), keepdim=True)

    def loss(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(latents), (_BATCH,), generator=generator, device=device)
        clean = latents[rows]
        noise = torch.randn(clean.shape, generator=generator, device=device)
        output = vae.decode(clean + _NOISE * spread * noise).sample
        error: Tensor = reconstruction_loss(output, pixels[rows.cpu()].to(device) * 2 - 1)
        return error

    def preview(file: Path) -> None:
        pair = torch.stack([pixels[:6].to(device), vae.decode(latents[:6]).sample / 2 + 0.5], 1)
        save_grid(pair.flatten(0, 1).transpose(1, 2).flatten(0, 1), file, columns=FRAMES)

    optimiser = Optimiser(vae, lambda name, p: p.ndim >= 4 and min(p.shape[0], p.shape[1]) >= 16)
    progress = fit(vae, loss, optimiser, Pace(lr=1e-3, checkpoint_every=90), training, preview)
    vae.save_pretrained(path)
    return progress
