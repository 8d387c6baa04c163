"""The DDIM testbed: emoji in pixels, as Diffusers' tutorials train: a UNet that predicts the noise, with the plain loss.

The noise scheduler has its default arguments, so it clips predicted samples. All timesteps are equally likely and equally weighed, so little
is learnt where there is much noise: the first predicted samples of a run are far out of range.
"""

from __future__ import annotations

import torch
from diffusers import DDIMScheduler
from torch import Tensor
from torch.nn import functional

from diffcache.evals.training import emoji
from diffcache.evals.training.ddpm import BATCH, pixel_pipeline, train_on_pixels
from diffcache.evals.training.loop import Progress, Training


def train(training: Training) -> Progress:
    """Trains the denoiser and saves the pipeline to `training.out`."""
    torch.manual_seed(training.seed)
    pipe = pixel_pipeline(DDIMScheduler())
    large, _ = emoji.training_pictures(training.work)
    trained_for = len(pipe.scheduler.alphas_cumprod)

    def timesteps(generator: torch.Generator) -> Tensor:
        return torch.randint(trained_for, (BATCH,), generator=generator, device=training.device)

    def loss(output: Tensor, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return functional.mse_loss(output, noise)

    return train_on_pixels("ddim", pipe, functional.avg_pool2d(large.float(), 2), timesteps, loss, training)
