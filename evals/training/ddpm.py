"""The DDPM testbed: Fashion-MNIST without classes, by a UNet over pixels that predicts the clean picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel
from torch import Tensor, nn

from diffcache.evals.testbeds import zoo
from diffcache.evals.training import fashion_pictures
from diffcache.evals.training.common import informative_timesteps, save_pipeline
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.noise_prediction import noisy, sample_loss
from diffcache.evals.training.optim import Optimiser
from diffcache.evals.training.sd import is_matrix

BATCH = 32


def pixel_pipeline(noise_scheduler: DDIMScheduler) -> DDIMPipeline:
    """A UNet over pictures of three channels and 32 x 32 pixels, with attention at 8 x 8 and below, that returns zeros at first."""
    unet = UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        block_out_channels=(32, 64, 128),
        layers_per_block=1,
        attention_head_dim=32,
        norm_num_groups=8,
    )
    nn.init.zeros_(unet.conv_out.weight)
    pipe = DDIMPipeline(unet.eval(), noise_scheduler)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def train(training: Training) -> Progress:
    """Trains the denoiser and saves the pipeline to `training.out`."""
    torch.manual_seed(training.seed)
    # The noise levels of DDPM checkpoints.
    pipe = pixel_pipeline(DDIMScheduler(beta_start=1e-4, beta_end=0.02, prediction_type="sample"))
    pixels, _ = fashion_pictures.pictures(training.work)
    alphas = pipe.scheduler.alphas_cumprod.to(training.device)

    def timesteps(generator: torch.Generator) -> Tensor:
        return informative_timesteps(BATCH, alphas, generator)

    def loss(output: Tensor, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return sample_loss(output, clean, alphas, t)

    return train_on_pixels("ddpm", pipe, pixels, timesteps, loss, training)


def train_on_pixels(
    name: str,
    pipe: DDIMPipeline,
    pixels: Tensor,
    timesteps: Callable[[torch.Generator], Tensor],
    loss: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    training: Training,
) -> Progress:
    """Trains a pipeline's UNet, and saves the pipeline to `training.out`.

    Args:
        name: of the testbed.
        pipe: untrained.
        pixels: pictures from 0 to 255, [n, 3, 32, 32].
        timesteps: draws one for each picture of a batch.
        loss: of an output, by the clean pictures from -1 to 1, the noise, and the timesteps.
        training: how long, and where.
    """
    device = training.device
    pipe.to(device).unet.to(memory_format=torch.channels_last)
    alphas = pipe.scheduler.alphas_cumprod.to(device)

    def loss_of_batch(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(pixels), (BATCH,), generator=generator, device=device).cpu()
        clean = pixels[rows].to(device).float() / 127.5 - 1
        t = timesteps(generator)
        noise = torch.randn(clean.shape, generator=generator, device=device)
        sample = noisy(clean, noise, alphas, t).contiguous(memory_format=torch.channels_last)
        return loss(pipe.unet(sample, t, return_dict=False)[0], clean, noise, t)

    def preview(path: Path) -> None:
        save_grid(pipe(**zoo.sample_call(name, 0, 50, n=20))[0], path, columns=10, zoom=3)

    optimiser = Optimiser(pipe.unet, is_matrix)
    progress = fit(pipe.unet, loss_of_batch, optimiser, Pace(lr=2e-3), training, preview)
    save_pipeline(pipe, training.out)
    return progress
