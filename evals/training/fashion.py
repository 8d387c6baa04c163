"""The Fashion-MNIST testbed: a DiT that predicts the noise and, beside it, the variance of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel
from torch import Tensor, nn

from diffcache.evals.testbeds import zoo
from diffcache.evals.training import fashion_pictures
from diffcache.evals.training.common import (
    encode,
    informative_timesteps,
    is_block_matrix,
    made_once,
    save_pipeline,
    zero_modulation,
)
from diffcache.evals.training.dit import NULL_LABEL, clear_unused_labels
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.noise_prediction import noise_and_variance_loss, noisy
from diffcache.evals.training.optim import Optimiser

_BATCH = 32


def build(vae: AutoencoderKL) -> DiTPipeline:
    """Eight blocks of width 128 over 64 tokens, and the noise scheduler that DiT ships."""
    transformer = DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=32,
        in_channels=4,
        out_channels=8,
        num_layers=8,
        sample_size=16,
        patch_size=2,
        num_embeds_ada_norm=NULL_LABEL,
    )
    zero_modulation(transformer)
    nn.init.zeros_(transformer.proj_out_2.weight)
    # In training mode each block would drop labels by itself.
    pipe = DiTPipeline(transformer.eval(), vae, DDIMScheduler(beta_schedule="linear", clip_sample=False))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def train(training: Training) -> Progress:
    """Trains the denoiser and saves the pipeline to `training.out`."""
    torch.manual_seed(training.seed)
    device = training.device
    vae = AutoencoderKL.from_pretrained(training.work / "fashion_vae" / "vae")
    pipe = build(vae).to(device)
    pixels, labels = fashion_pictures.pictures(training.work)
    latents = made_once(training.work / "fashion.pt", lambda: encode(vae, pixels, device))
    compiled: Any = torch.compile(pipe.transformer)
    alphas = pipe.scheduler.alphas_cumprod.to(device)

    def loss(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(latents), (_BATCH,), generator=generator, device=device).cpu()
        clean, asked = latents[rows].to(device).float(), labels[rows].to(device)
        dropped = torch.rand(_BATCH, generator=generator, device=device) < 0.1
        t = informative_timesteps(_BATCH, alphas, generator)
        noise = torch.randn(clean.shape, generator=generator, device=device)
        asked = torch.where(dropped, NULL_LABEL, asked)
        output = compiled(noisy(clean, noise, alphas, t), timestep=t, class_labels=asked).sample
        return noise_and_variance_loss(output, noise, alphas, t)

    def preview(path: Path) -> None:
        call = zoo.call_for("fashion", [i % 10 for i in range(20)], range(20), 50)
        save_grid(pipe(**call)[0], path, columns=10, zoom=3)

    progress = fit(
        pipe.transformer,
        loss,
        Optimiser(pipe.transformer, is_block_matrix),
        Pace(lr=3e-3),
        training,
        preview,
    )
    clear_unused_labels(pipe.transformer, zoo.CLASSES["fashion"])
    save_pipeline(pipe, training.out)
    return progress
