"""The Lumina 2 testbed: emoji from their names, by flow matching, with guidance that keeps the norm of the prompted output.

The denoiser gets the time as a number from 0 (noise) to 1 (data), as Lumina Image 2.0's does, not as one of a thousand timesteps.
"""

from __future__ import annotations

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    Lumina2Pipeline,
    Lumina2Transformer2DModel,
)
from torch import Tensor, nn

from diffcache.evals.training import emoji, text
from diffcache.evals.training.common import flow_batch, is_block_matrix, zero_modulation
from diffcache.evals.training.loop import Progress, Training

LENGTH = emoji.LENGTH + 2
"""Tokens per prompt: the pipeline writes two words of its own before each caption."""

_BATCH = 32
_TEXT_WIDTH = 96
_TRAINING_SHIFT = 2.0


def vocabulary() -> text.Vocabulary:
    """The words of the captions, and those that the pipeline writes before them."""
    return text.Vocabulary([*emoji.vocabulary().words, "<Prompt", "Start>"], LENGTH)


def build(vae: AutoencoderKL) -> Lumina2Pipeline:
    """Six blocks of width 128 over 64 tokens and those of the prompt, a Gemma encoder, and the noise scheduler that Lumina Image 2.0 ships."""
    transformer = Lumina2Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=8,
        hidden_size=128,
        num_layers=6,
        num_refiner_layers=1,
        num_attention_heads=4,
        num_kv_heads=2,
        multiple_of=64,
        ffn_dim_multiplier=0.75,
        axes_dim_rope=(8, 12, 12),
        axes_lens=(16, 16, 16),
        cap_feat_dim=_TEXT_WIDTH,
    )
    zero_modulation(transformer)
    nn.init.zeros_(transformer.norm_out.linear_2.weight)
    pipe = Lumina2Pipeline(
        tokenizer=text.t5_tokenizer(vocabulary()),
        text_encoder=text.gemma_encoder(_TEXT_WIDTH, vocabulary()),
        vae=vae,
        transformer=transformer.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a weight matrix inside a block, those that refine among them."""
    return is_block_matrix(name.replace("_refiner.", "_layers."), parameter)


def train(training: Training) -> Progress:
    """Trains denoiser and text encoder together and saves the pipeline to `training.out`."""
    pipe, data, texts = emoji.begun(build, training)
    rotary = pipe.transformer.rope_embedder
    rotary.freqs_cis = [turns.to(torch.complex64) for turns in rotary.freqs_cis]  # half as slow to train

    def loss(generator: torch.Generator) -> Tensor:
        noisy, target, sigma, rows = flow_batch(data.latents, _BATCH, _TRAINING_SHIFT, generator)
        prompts = [texts[i] for i in rows.tolist()]
        states, mask, empty, empty_mask = pipe.encode_prompt(
            prompts, system_prompt="", max_sequence_length=LENGTH
        )
        # The empty prompt has no words before it: the pipeline writes them only before prompts to draw.
        is_empty = (rows == len(data.latents))[:, None]
        output = pipe.transformer(
            hidden_states=noisy,
            timestep=1 - sigma,
            encoder_hidden_states=torch.where(is_empty[..., None], empty, states),
            encoder_attention_mask=torch.where(is_empty, empty_mask, mask),
            return_dict=False,
        )[0]
        error: Tensor = (output + target).square().mean()
        return error

    parts = ("transformer", "text_encoder")
    return emoji.train_together(pipe, parts, loss, training, steps=28, is_matrix=is_matrix)
