"""Audio transformers."""

from __future__ import annotations

import torch
from torch import Generator
from zoo.denoiser_case import Kwargs, case, randn, rising, rotary, times, unit
from zoo.shared_inputs import TEXT, WIDTH


def ace_step(generator: Generator, batch: int) -> Kwargs:
    return {
        "hidden_states": randn(generator, batch, 8, 4),
        "timestep": times(batch),
        "timestep_r": times(batch, 0.8),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "context_latents": randn(generator, batch, 8, 8),
        "return_dict": False,
    }


def longcat(generator: Generator, batch: int) -> Kwargs:
    return {
        "hidden_states": randn(generator, batch, 8, 4),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "encoder_attention_mask": torch.arange(TEXT).expand(batch, -1) < TEXT - 1,
        "timestep": times(batch, 0.0),
        "attention_mask": torch.ones(batch, 8, dtype=torch.bool),
        "latent_cond": randn(generator, batch, 8, 4),
        "return_dict": True,
    }


def music3(generator: Generator, batch: int) -> Kwargs:
    return {
        "hidden_states": randn(generator, batch, 4, 8),
        "timestep": times(batch, 0.0),
        "encoder_hidden_states": randn(generator, batch, 8, WIDTH),
        "return_dict": False,
    }


def stable_audio(generator: Generator, batch: int) -> Kwargs:
    return {
        "hidden_states": randn(generator, batch, 4, 8),
        "timestep": times(1),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "global_hidden_states": randn(generator, batch, 1, WIDTH),
        "rotary_embedding": rotary(9, 4),
        "return_dict": False,
    }


def stable_audio3(generator: Generator, batch: int) -> Kwargs:
    return {
        "hidden_states": randn(generator, batch, 4, 8),
        "timestep": times(batch),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "global_hidden_states": randn(generator, batch, WIDTH),
        "encoder_attention_mask": torch.arange(TEXT).expand(batch, -1) < TEXT - 1,
        "local_add_cond": randn(generator, batch, 5, 8),
        "return_dict": False,
    }


def t5_film(generator: Generator, batch: int) -> Kwargs:
    """The conditions are a list of pairs of encoding and mask."""
    encodings = [(randn(generator, batch, TEXT, WIDTH), torch.ones(batch, TEXT)) for _ in range(2)]
    return {
        "encodings_and_masks": encodings,
        "decoder_input_tokens": randn(generator, batch, 8, 4),
        "decoder_noise_time": times(batch),
    }


CASES = [
    case(
        "AceStepTransformer1DModel",
        {
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "in_channels": 12,
            "audio_acoustic_hidden_dim": 4,
            "encoder_hidden_size": WIDTH,
            "sliding_window": 4,
        },
        ace_step,
        next_time="timestep_r",
        time_values=unit,
        notes="single stream; sliding and full attention by turns; two times",
    ),
    case(
        "LongCatAudioDiTTransformer",
        {
            "dit_dim": 32,
            "dit_depth": 4,
            "dit_heads": 2,
            "dit_text_dim": WIDTH,
            "latent_dim": 4,
            "ff_mult": 2.0,
        },
        longcat,
        time_values=rising,
        notes="one long skip from the embedding to the last norm; time rises",
    ),
    case(
        "MiniMaxMusic3Transformer1DModel",
        {
            "in_channels": 4,
            "condition_dim": WIDTH,
            "num_layers": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "ff_inner_dim": 32,
            "rotary_dim": 4,
            "fourier_embedding_dim": 16,
        },
        music3,
        time_values=rising,
        notes="the time is a token of the sequence; blocks see nothing else of it; time rises",
    ),
    case(
        "StableAudioDiTModel",
        {
            "sample_size": 8,
            "in_channels": 4,
            "num_layers": 4,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "num_key_value_attention_heads": 2,
            "out_channels": 4,
            "cross_attention_dim": 16,
            "time_proj_dim": 16,
            "global_states_input_dim": WIDTH,
            "cross_attention_input_dim": WIDTH,
        },
        stable_audio,
        time_values=unit,
        notes="the time is a token of the sequence; blocks see nothing else of it",
    ),
    case(
        "StableAudio3DiTModel",
        {
            "io_channels": 4,
            "embed_dim": 32,
            "depth": 4,
            "num_heads": 2,
            "cond_token_dim": WIDTH,
            "global_cond_dim": WIDTH,
            "local_add_cond_dim": 5,
            "timestep_features_dim": 16,
            "ff_mult": 2.0,
            "num_memory_tokens": 2,
        },
        stable_audio3,
        time_values=unit,
        notes="memory tokens before the sequence",
    ),
    case(
        "T5FilmDecoder",
        {
            "input_dims": 4,
            "targets_length": 8,
            "max_decoder_noise_time": 20.0,
            "d_model": WIDTH,
            "num_layers": 4,
            "num_heads": 2,
            "d_kv": 8,
            "d_ff": 32,
            "dropout_rate": 0.0,
        },
        t5_film,
        latents=("decoder_input_tokens",),
        time=("decoder_noise_time",),
        time_values=unit,
        text=("encodings_and_masks",),
        notes="blocks return a tuple of one; the forward returns a bare tensor",
    ),
]
