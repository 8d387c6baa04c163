"""The PixArt testbed: emoji from their names. It predicts the noise and, beside it, the variance of a step."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DPMSolverMultistepScheduler,
    PixArtAlphaPipeline,
    PixArtTransformer2DModel,
)
from torch import Tensor, nn

from diffcache.evals.training import emoji, text
from diffcache.evals.training.common import drawn, informative_timesteps
from diffcache.evals.training.loop import Progress, Training
from diffcache.evals.training.noise_prediction import noise_and_variance_loss, noisy

_BATCH = 32
_TEXT_WIDTH = 96


def build(vae: AutoencoderKL) -> PixArtAlphaPipeline:
    """Ten blocks of width 128 over 64 tokens, a T5 encoder, and the noise scheduler that PixArt ships."""
    transformer = PixArtTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=32,
        in_channels=8,
        out_channels=16,
        num_layers=10,
        cross_attention_dim=128,
        sample_size=16,
        patch_size=2,
        caption_channels=_TEXT_WIDTH,
    )
    nn.init.zeros_(transformer.proj_out.weight)
    pipe = PixArtAlphaPipeline(
        tokenizer=text.t5_tokenizer(emoji.vocabulary()),
        text_encoder=text.t5_encoder(_TEXT_WIDTH, emoji.vocabulary()),
        vae=vae,
        transformer=transformer.eval(),
        scheduler=DPMSolverMultistepScheduler(beta_start=1e-4, beta_end=0.02, beta_schedule="linear"),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def train(training: Training) -> Progress:
    """Trains denoiser and text encoder together and saves the pipeline to `training.out`."""
    device = training.device
    pipe, data, texts = emoji.begun(build, training)
    compiled: Any = torch.compile(pipe.transformer)
    alphas = pipe.scheduler.alphas_cumprod.to(device)

    def loss(generator: torch.Generator) -> Tensor:
        clean, rows = drawn(data.latents, _BATCH, generator)
        t = informative_timesteps(_BATCH, alphas, generator)
        noise = torch.randn(clean.shape, generator=generator, device=device)
        prompts = [texts[i] for i in rows.tolist()]
        states, mask, _, _ = pipe.encode_prompt(prompts, False, max_sequence_length=emoji.LENGTH)
        output = compiled(
            noisy(clean, noise, alphas, t),
            encoder_hidden_states=states,
            encoder_attention_mask=mask,
            timestep=t,
            added_cond_kwargs={"resolution": None, "aspect_ratio": None},
            return_dict=False,
        )[0]
        return noise_and_variance_loss(output, noise, alphas, t)

    parts = ("transformer", "text_encoder")
    return emoji.train_together(pipe, parts, loss, training, steps=20)
