"""The SD3 testbed: emoji from their names, by flow matching."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from torch import Tensor, nn

from diffcache.evals.training import emoji, text
from diffcache.evals.training.common import flow_batch, zero_modulation
from diffcache.evals.training.loop import Progress, Training

_BATCH = 32
_CLIP_WIDTH = 32
_T5_WIDTH = 64
_TRAINING_SHIFT = 2.0


def build(vae: AutoencoderKL) -> StableDiffusion3Pipeline:
    """Six blocks of width 128 over 64 tokens, two CLIP and a T5 encoder, and the noise scheduler that SD3 ships."""
    vocabulary = emoji.vocabulary()
    transformer = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=8,
        out_channels=8,
        num_layers=6,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=_T5_WIDTH,
        caption_projection_dim=128,
        pooled_projection_dim=2 * _CLIP_WIDTH,
        pos_embed_max_size=8,
    )
    zero_modulation(transformer)
    nn.init.zeros_(transformer.proj_out.weight)
    pipe = StableDiffusion3Pipeline(
        transformer=transformer.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=text.clip_encoder_with_projection(_CLIP_WIDTH, vocabulary),
        tokenizer=text.clip_tokenizer(vocabulary),
        text_encoder_2=text.clip_encoder_with_projection(_CLIP_WIDTH, vocabulary),
        tokenizer_2=text.clip_tokenizer(vocabulary),
        text_encoder_3=text.t5_encoder(_T5_WIDTH, vocabulary),
        tokenizer_3=text.t5_tokenizer(vocabulary),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def train(training: Training) -> Progress:
    """Trains denoiser and text encoders together and saves the pipeline to `training.out`."""
    pipe, data, texts = emoji.begun(build, training)
    compiled: Any = torch.compile(pipe.transformer)

    def loss(generator: torch.Generator) -> Tensor:
        noisy, target, sigma, rows = flow_batch(data.latents, _BATCH, _TRAINING_SHIFT, generator)
        prompts = [texts[i] for i in rows.tolist()]
        states, _, pooled, _ = pipe.encode_prompt(
            prompts, None, None, do_classifier_free_guidance=False, max_sequence_length=emoji.LENGTH
        )
        output = compiled(
            hidden_states=noisy,
            timestep=1000 * sigma,
            encoder_hidden_states=states,
            pooled_projections=pooled,
            return_dict=False,
        )[0]
        error: Tensor = (output - target).square().mean()
        return error

    parts = ("transformer", "text_encoder", "text_encoder_2", "text_encoder_3")
    return emoji.train_together(pipe, parts, loss, training, steps=28)
