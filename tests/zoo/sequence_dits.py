"""Image transformers that join picture and text into one sequence."""

from __future__ import annotations

import torch
from torch import Generator
from zoo.denoiser_case import Kwargs, case, randn, rising, times, unit
from zoo.image_dits import masked, picture
from zoo.shared_inputs import TEXT, WIDTH, mask


def from_zero(generator: Generator, batch: int) -> Kwargs:
    return masked(generator, batch) | {"timestep": times(batch, 0.0)}


def omnigen(generator: Generator, batch: int) -> Kwargs:
    """Text tokens, a time token and picture tokens are one sequence."""
    length = TEXT + 1 + 16
    return {
        "hidden_states": randn(generator, batch, 4, 8, 8),
        "timestep": times(batch, 0.0),
        "input_ids": torch.randint(1, 32, (batch, TEXT), generator=generator),
        "input_img_latents": [],
        "input_image_sizes": {},
        "attention_mask": torch.ones(batch, length, length),
        "position_ids": torch.arange(length).expand(batch, -1),
        "return_dict": False,
    }


def z_image(generator: Generator, batch: int) -> Kwargs:
    return {
        "x": [randn(generator, 4, 1, 8, 8) for _ in range(batch)],
        "t": times(batch, 0.0),
        "cap_feats": [randn(generator, TEXT, WIDTH) for _ in range(batch)],
        "return_dict": False,
    }


def ernie(generator: Generator, batch: int) -> Kwargs:
    inputs = picture(generator, batch, size=4)
    text = inputs.pop("encoder_hidden_states")
    return inputs | {"text_bth": text, "text_lens": torch.full((batch,), TEXT)}


def fibo2(generator: Generator, batch: int) -> Kwargs:
    return picture(
        generator,
        batch,
        encoder_hidden_states=randn(generator, batch, 3, TEXT, WIDTH),
        encoder_attention_mask=mask(batch),
        context_latents=[randn(generator, batch, 4, 8, 8)],
        timestep=times(batch),
    )


CASES = [
    case(
        "Lumina2Transformer2DModel",
        {
            "sample_size": 8,
            "in_channels": 4,
            "hidden_size": 24,
            "num_layers": 4,
            "num_refiner_layers": 1,
            "num_attention_heads": 3,
            "num_kv_heads": 1,
            "multiple_of": 8,
            "axes_dim_rope": (4, 2, 2),
            "axes_lens": (32, 16, 16),
            "cap_feat_dim": WIDTH,
        },
        from_zero,
        time_values=rising,
        notes="refiners, then one joined sequence written row by row into a fresh buffer; time rises",
    ),
    case(
        "OmniGenTransformer2DModel",
        {
            "in_channels": 4,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "intermediate_size": 32,
            "num_layers": 4,
            "pad_token_id": 0,
            "vocab_size": 32,
            "max_position_embeddings": 64,
            "original_max_position_embeddings": 64,
            "pos_embed_max_size": 8,
            "time_step_dim": 16,
            "rope_scaling": {"long_factor": [1, 1, 1, 1], "short_factor": [1, 1, 1, 1], "type": "su"},
        },
        omnigen,
        time_values=rising,
        text=("input_ids",),
        notes="text, time and picture are one sequence; time rises",
    ),
    case(
        "ZImageTransformer2DModel",
        {
            "in_channels": 4,
            "dim": 32,
            "n_layers": 4,
            "n_refiner_layers": 1,
            "n_heads": 2,
            "n_kv_heads": 2,
            "cap_feat_dim": WIDTH,
            "axes_dims": [8, 4, 4],
            "axes_lens": [64, 8, 8],
        },
        z_image,
        latents=("x",),
        time=("t",),
        time_values=rising,
        text=("cap_feats",),
        notes="lists of latents and of text; output is a list; time rises",
    ),
    case(
        "ErnieImageTransformer2DModel",
        {
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_layers": 4,
            "ffn_hidden_size": 32,
            "in_channels": 4,
            "out_channels": 4,
            "text_in_dim": WIDTH,
            "rope_axes_dim": (8, 4, 4),
        },
        ernie,
        text=("text_bth",),
        notes="sequence first; picture before text",
    ),
    case(
        "BriaFibo2Transformer2DModel",
        {
            "in_channels": 4,
            "dim": 32,
            "n_layers": 4,
            "n_refiner_layers": 1,
            "n_heads": 2,
            "cap_feat_dim": WIDTH,
            "injection_layer_ids": (1, 3),
            "perceiver_num_layers": 1,
            "min_num_gist_tokens": 4,
            "max_num_gist_tokens": 8,
            "gist_step": 4,
            "gist_min_text_len": 4,
            "gist_max_text_len": 8,
            "axes_dims": (8, 4, 4),
            "axes_lens": (32, 8, 8),
        },
        fibo2,
        time_values=unit,
        notes="gist, picture and context are one sequence; some blocks take another text by cross-attention",
    ),
]
