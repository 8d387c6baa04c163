"""The Sana testbed: emoji from their names, by flow matching with linear attention."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderDC,
    AutoencoderKL,
    DPMSolverMultistepScheduler,
    SanaPipeline,
    SanaTransformer2DModel,
)
from torch import Tensor, nn

from diffcache.evals.training import emoji, text
from diffcache.evals.training.common import flow_batch
from diffcache.evals.training.loop import Progress, Training

_BATCH = 32
_TEXT_WIDTH = 96
_TRAINING_SHIFT = 2.0


def build(vae: AutoencoderDC) -> SanaPipeline:
    """Eight blocks of width 128 over 64 tokens, a Gemma encoder, and the noise scheduler that Sana ships."""
    transformer = SanaTransformer2DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=4,
        attention_head_dim=32,
        num_layers=8,
        num_cross_attention_heads=4,
        cross_attention_head_dim=32,
        cross_attention_dim=128,
        caption_channels=_TEXT_WIDTH,
        mlp_ratio=2.5,
        sample_size=16,
        patch_size=2,
    )
    nn.init.zeros_(transformer.proj_out.weight)
    pipe = SanaPipeline(
        tokenizer=text.t5_tokenizer(emoji.vocabulary()),
        text_encoder=text.gemma_encoder(_TEXT_WIDTH, emoji.vocabulary()),
        vae=vae,
        transformer=transformer.eval(),
        scheduler=DPMSolverMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def train(training: Training) -> Progress:
    """Trains denoiser and text encoder together and saves the pipeline to `training.out`."""
    torch.manual_seed(training.seed)
    device, work = training.device, training.work
    pipe = build(AutoencoderDC.from_pretrained(work / "emoji_dc" / "vae")).to(device)
    data = emoji.latents(AutoencoderKL.from_pretrained(work / "emoji_vae" / "vae"), training)
    texts = [*data.captions, ""]
    compiled: Any = torch.compile(pipe.transformer)

    def loss(generator: torch.Generator) -> Tensor:
        noisy, target, sigma, rows = flow_batch(data.latents, _BATCH, _TRAINING_SHIFT, generator)
        prompts = [texts[i] for i in rows.tolist()]
        states, mask, _, _ = pipe.encode_prompt(prompts, False, max_sequence_length=emoji.LENGTH)
        output = compiled(
            noisy,
            encoder_hidden_states=states,
            encoder_attention_mask=mask,
            timestep=1000 * sigma,
            return_dict=False,
        )[0]
        error: Tensor = (output - target).square().mean()
        return error

    parts = ("transformer", "text_encoder")
    return emoji.train_together(pipe, parts, loss, training, steps=20)
