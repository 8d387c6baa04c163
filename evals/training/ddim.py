"""The DDIM testbed: emoji in pixels, as Diffusers' tutorials train: a UNet that predicts the noise, with the plain loss.

The noise scheduler has its default arguments, so it clips predicted samples. All timesteps are equally likely and equally weighed, so little
is learnt where there is much noise: the first predicted samples of a run are far out of range.
"""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import DDIMPipeline, DDIMScheduler
from torch import Tensor
from torch.nn import functional

from diffcache.evals.testbeds import zoo
from diffcache.evals.training import emoji
from diffcache.evals.training.common import save_pipeline
from diffcache.evals.training.ddpm import pixel_unet
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.noise_prediction import noisy
from diffcache.evals.training.optim import Optimiser
from diffcache.evals.training.sd import is_matrix

_BATCH = 32


def build() -> DDIMPipeline:
    """The testbed's pipeline, untrained."""
    pipe = DDIMPipeline(pixel_unet(), DDIMScheduler())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def train(training: Training) -> Progress:
    """Trains the denoiser and saves the pipeline to `training.out`."""
    torch.manual_seed(training.seed)
    device = training.device
    pipe = build().to(device)
    pipe.unet.to(memory_format=torch.channels_last)
    large, _ = emoji.training_pictures(training.work)
    pixels = functional.avg_pool2d(large.float() / 127.5 - 1, 2)
    alphas = pipe.scheduler.alphas_cumprod.to(device)

    def loss(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(pixels), (_BATCH,), generator=generator, device=device).cpu()
        clean = pixels[rows].to(device)
        t = torch.randint(len(alphas), (_BATCH,), generator=generator, device=device)
        noise = torch.randn(clean.shape, generator=generator, device=device)
        sample = noisy(clean, noise, alphas, t).contiguous(memory_format=torch.channels_last)
        return functional.mse_loss(pipe.unet(sample, t, return_dict=False)[0], noise)

    def preview(path: Path) -> None:
        save_grid(pipe(**zoo.sample_call("ddim", 0, 50, n=20))[0], path, columns=10, zoom=3)

    optimiser = Optimiser(pipe.unet, is_matrix)
    progress = fit(pipe.unet, loss, optimiser, Pace(lr=2e-3), training, preview)
    save_pipeline(pipe, training.out)
    return progress
