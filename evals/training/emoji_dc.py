"""The deep-compression autoencoder of the sana testbed, with the latents of `emoji_vae`.

Its encoder learns the latents that `emoji_vae` has given the training pictures, its decoder the pictures from them.
So denoisers of emoji all learn the same latents, and this autoencoder needs a few minutes only.
"""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderDC, AutoencoderKL
from torch import Tensor

from diffcache.evals.training import emoji, vae
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

_BATCH = 16
_WIDTHS = (16, 32, 64)


def build() -> AutoencoderDC:
    """64 x 64 RGB to 16 x 16 x 8 latents, one residual block at each level."""
    layers, scales = (1,) * len(_WIDTHS), ((),) * len(_WIDTHS)
    return AutoencoderDC(
        latent_channels=vae.LATENT_CHANNELS,
        encoder_block_out_channels=_WIDTHS,
        decoder_block_out_channels=_WIDTHS,
        encoder_layers_per_block=layers,
        decoder_layers_per_block=layers,
        encoder_qkv_multiscales=scales,
        decoder_qkv_multiscales=scales,
    )


def train(training: Training) -> Progress:
    """Trains the autoencoder and saves it to `training.folder`/vae."""
    torch.manual_seed(training.seed)
    device = training.device
    pixels, _ = emoji.training_pictures(training.work)
    known = emoji.latents(
        AutoencoderKL.from_pretrained(training.work / "emoji_vae" / "vae"), training
    ).latents
    model = build().to(device, memory_format=torch.channels_last)

    def loss(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(pixels), (_BATCH,), generator=generator, device=device).cpu()
        pictures = pixels[rows].to(device).float() / 127.5 - 1
        pictures = pictures.contiguous(memory_format=torch.channels_last)
        latents = known[rows].to(device).float()
        error = (model.encode(pictures).latent - latents).square().mean()
        noise = torch.randn(latents.shape, generator=generator, device=device)
        # A little noise, as denoised latents are never exact.
        output = model.decode(latents + 0.05 * noise).sample
        total: Tensor = vae.reconstruction_loss(output, pictures) + 0.1 * error
        return total

    def preview(path: Path) -> None:
        output = model.decode(known[:16].to(device).float()).sample
        save_grid(torch.cat([pixels[:16].to(device) / 255, output / 2 + 0.5]), path)

    optimiser = Optimiser(model, lambda name, p: p.ndim == 4 and min(p.shape[0], p.shape[1]) >= 16)
    progress = fit(model, loss, optimiser, Pace(lr=3e-3, checkpoint_every=120), training, preview)
    with torch.no_grad():
        preview(training.folder / "final.png")
    model.save_pretrained(training.folder / "vae")
    return progress
