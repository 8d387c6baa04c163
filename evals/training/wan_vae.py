"""The clip autoencoder of the wan testbed: 9 frames of 32 x 32 RGB to 5 x 8 x 8 x 16 latents."""

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

FRAMES = 9
SIDE = 32
LATENT_CHANNELS = 16
_BATCH = 6


def build() -> AutoencoderKLWan:
    """A new causal autoencoder of Wan 2.2's kind, 2x smaller in time and 4x on each side."""
    return AutoencoderKLWan(
        base_dim=32,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 1],
        num_res_blocks=1,
        temperal_downsample=[True],
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
        scale_factor_temporal=2,
        scale_factor_spatial=4,
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
    )


def train(training: Training) -> Progress:
    """Trains the autoencoder and saves it to `training.folder`/vae."""
    torch.manual_seed(training.seed)
    folder, device = training.folder, training.device
    vae = build().to(device)
    pool = procedural.clips(4_000, seed=2000 + training.seed, side=SIDE, frames=FRAMES).pixels
    pool = pool.mul(255).round().to(torch.uint8)

    def loss(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(pool), (_BATCH,), generator=generator, device=device).cpu()
        pixels = pool[rows].to(device).float() / 127.5 - 1
        posterior = vae.encode(pixels).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=generator, device=device)
        output = vae.decode(posterior.mean + posterior.std * noise).sample
        divergence = 0.5 * (posterior.mean.square() + posterior.var - 1 - posterior.logvar).mean()
        total: Tensor = reconstruction_loss(output, pixels) + 3e-4 * divergence
        return total

    def preview(path: Path) -> None:
        pixels = pool[:6].to(device).float() / 127.5 - 1
        output = vae.decode(vae.encode(pixels).latent_dist.mode()).sample
        frames = torch.stack([pixels, output], 1).flatten(0, 1).transpose(1, 2).flatten(0, 1)
        save_grid(frames / 2 + 0.5, path, columns=FRAMES)

    optimiser = Optimiser(vae, lambda name, p: p.ndim >= 4 and min(p.shape[0], p.shape[1]) >= 16)
    progress = fit(vae, loss, optimiser, Pace(lr=1.5e-3, checkpoint_every=90), training, preview)
    with torch.no_grad():
        preview(folder / "final.png")
        _record_statistics(vae, pool[:256].to(device).float() / 127.5 - 1)
    vae.save_pretrained(folder / "vae")
    return progress


def _record_statistics(vae: AutoencoderKLWan, pixels: Tensor) -> None:
    """Writes each latent channel's mean and deviation into the configuration, where WanPipeline reads them."""
    latents = torch.cat([vae.encode(chunk).latent_dist.mode() for chunk in torch.split(pixels, 16)])
    mean, std = latents.mean((0, 2, 3, 4)), latents.std((0, 2, 3, 4))
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
