"""The picture autoencoder that the three testbeds of shapes share: 64 x 64 RGB to 16 x 16 x 8 latents."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from diffcache.evals.testbeds import procedural
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

LATENT_CHANNELS = 8
_WIDTHS = (16, 32, 48)


def build(
    widths: tuple[int, ...] = _WIDTHS, channels: int = LATENT_CHANNELS, side: int = 64
) -> AutoencoderKL:
    """A new autoencoder. Latents have mean 0 and deviation 1 after `normalise`.

    Args:
        widths: of each level; from one to the next the sides halve.
        channels: of the latents.
        side: of the pictures, in pixels.
    """
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * len(widths),
        up_block_types=("UpDecoderBlock2D",) * len(widths),
        block_out_channels=widths,
        layers_per_block=1,
        latent_channels=channels,
        norm_num_groups=4,
        mid_block_add_attention=False,
        sample_size=side,
        scaling_factor=1.0,
        shift_factor=0.0,
    )


def reconstruction_loss(output: Tensor, target: Tensor) -> Tensor:
    """Absolute error of the pixels and of the differences between neighbours, which keeps edges sharp."""
    error = output - target
    rows, columns = error.diff(dim=-2), error.diff(dim=-1)
    return error.abs().mean() + 0.5 * (rows.abs().mean() + columns.abs().mean())


def train(training: Training) -> Progress:
    """Trains the autoencoder of shapes and saves it to `training.folder`/vae."""
    torch.manual_seed(training.seed)
    vae = build()
    pool = procedural.pictures(20_000, seed=1000 + training.seed).pixels.mul(255).round().to(torch.uint8)
    return fit_autoencoder(vae, pool, training)


def fit_autoencoder(vae: AutoencoderKL, pool: Tensor, training: Training) -> Progress:
    """Trains `vae` on pictures [n, 3, s, s] in uint8 and saves it to `training.folder`/vae."""
    folder, device = training.folder, training.device
    vae = vae.to(device, memory_format=torch.channels_last)

    def loss(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(pool), (16,), generator=generator, device=device).cpu()
        pixels = pool[rows].to(device).float() / 127.5 - 1
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        posterior = vae.encode(pixels).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=generator, device=device)
        output = vae.decode(posterior.mean + posterior.std * noise).sample
        total: Tensor = (
            reconstruction_loss(output, pixels) + 3e-4 * posterior.kl().mean() / posterior.mean[0].numel()
        )
        return total

    def preview(path: Path) -> None:
        pixels = pool[:16].to(device).float() / 127.5 - 1
        output = vae.decode(vae.encode(pixels).latent_dist.mode()).sample
        save_grid(torch.cat([pixels, output]) / 2 + 0.5, path)

    optimiser = Optimiser(vae, lambda name, p: p.ndim == 4 and min(p.shape[0], p.shape[1]) >= 16)
    progress = fit(vae, loss, optimiser, Pace(lr=3e-3, checkpoint_every=120), training, preview)
    with torch.no_grad():
        preview(folder / "final.png")
        normalise(vae, pool[:1024].to(device).float() / 127.5 - 1)
    vae.save_pretrained(folder / "vae")
    return progress


@torch.no_grad()
def normalise(vae: AutoencoderKL, pixels: Tensor) -> None:
    """Gives each latent channel mean 0 and deviation 1 over `pixels` [n, 3, s, s] in [-1, 1].

    The 1 x 1 convolution before the decoder gets the inverse, so decoded pictures do not change.
    """
    latents = torch.cat([vae.encode(chunk).latent_dist.mode() for chunk in torch.split(pixels, 64)])
    mean, std = latents.mean((0, 2, 3)), latents.std((0, 2, 3))
    channels = len(mean)
    encode, decode = vae.quant_conv, vae.post_quant_conv
    assert isinstance(encode, nn.Conv2d)
    assert isinstance(decode, nn.Conv2d)
    assert encode.bias is not None
    assert decode.bias is not None
    encode.weight[:channels] /= std[:, None, None, None]
    encode.bias[:channels] = (encode.bias[:channels] - mean) / std
    encode.bias[channels:] -= 2 * std.log()
    decode.bias += (decode.weight[:, :, 0, 0] * mean).sum(1)
    decode.weight *= std[None, :, None, None]
