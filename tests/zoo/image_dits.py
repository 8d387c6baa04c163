"""Image transformers with one stream, which looks at a constant text by cross-attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator
from zoo.denoiser_case import Kwargs, case, randn, rising, rotary, times, train_steps, unit
from zoo.shared_inputs import HEADS, TEXT, WIDTH, mask


def picture(generator: Generator, batch: int, size: int = 8, channels: int = 4, **more: Any) -> Kwargs:
    """A latent picture beside six tokens of text."""
    return {
        "hidden_states": randn(generator, batch, channels, size, size),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "timestep": times(batch, 999.0),
        "return_dict": False,
        **more,
    }


def dit(generator: Generator, batch: int) -> Kwargs:
    inputs = picture(
        generator, batch, timestep=torch.full((batch,), 999), class_labels=torch.arange(batch) + 7
    )
    del inputs["encoder_hidden_states"]
    return inputs


def pixart(generator: Generator, batch: int) -> Kwargs:
    sizes = {"resolution": None, "aspect_ratio": None}
    return picture(generator, batch, encoder_attention_mask=mask(batch), added_cond_kwargs=sizes)


def pixart_sized(generator: Generator, batch: int) -> Kwargs:
    sizes = {"resolution": torch.full((batch, 2), 64.0), "aspect_ratio": torch.ones(batch, 1)}
    return pixart(generator, batch) | {"added_cond_kwargs": sizes}


def masked(generator: Generator, batch: int) -> Kwargs:
    return picture(generator, batch, encoder_attention_mask=mask(batch))


def sizes(generator: Generator, batch: int) -> Kwargs:
    return picture(
        generator,
        batch,
        original_size=torch.full((batch, 2), 64.0),
        target_size=torch.full((batch, 2), 64.0),
        crop_coords=torch.zeros(batch, 2),
    )


def hunyuan_dit(generator: Generator, batch: int) -> Kwargs:
    return picture(
        generator,
        batch,
        text_embedding_mask=mask(batch, torch.float32),
        encoder_hidden_states_t5=randn(generator, batch, TEXT, WIDTH),
        text_embedding_mask_t5=mask(batch, torch.float32),
        image_meta_size=torch.full((batch, 6), 64.0),
        style=torch.zeros(batch, dtype=torch.long),
        image_rotary_emb=rotary(16, 8),
    )


def lumina(generator: Generator, batch: int) -> Kwargs:
    angles = torch.arange(16)[:, None] / 10.0 ** torch.arange(4)[None, :]
    rope = torch.polar(torch.ones(16, 4), angles).reshape(4, 4, 4)
    inputs = picture(generator, batch, timestep=times(batch, 0.0), encoder_mask=mask(batch))
    return inputs | {"image_rotary_emb": rope, "cross_attention_kwargs": {}}


def from_one(generator: Generator, batch: int) -> Kwargs:
    return picture(generator, batch, timestep=times(batch))


CASES = [
    case(
        "DiTTransformer2DModel",
        {
            **HEADS,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 4,
            "sample_size": 8,
            "norm_num_groups": 4,
        },
        dit,
        time_values=train_steps,
        text=("class_labels",),
        notes="each block embeds the time itself; learned sigma doubles the output's channels",
    ),
    case(
        "Transformer2DModel",
        {
            **HEADS,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 4,
            "sample_size": 8,
            "patch_size": 2,
            "norm_num_groups": 4,
            "norm_type": "ada_norm_zero",
            "num_embeds_ada_norm": 1000,
            "attention_bias": True,
            "norm_elementwise_affine": False,
            "activation_fn": "gelu-approximate",
        },
        dit,
        time_values=train_steps,
        text=("class_labels",),
        notes="as DiT",
    ),
    case(
        "PixArtTransformer2DModel",
        {
            **HEADS,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 4,
            "cross_attention_dim": 16,
            "sample_size": 8,
            "caption_channels": WIDTH,
            "norm_num_groups": 4,
        },
        pixart,
        notes="single stream with cross-attention; learned sigma",
    ),
    case(
        "PixArtTransformer2DModel",
        {
            "num_attention_heads": 3,
            "attention_head_dim": 8,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 3,
            "cross_attention_dim": 24,
            "sample_size": 128,
            "caption_channels": WIDTH,
            "use_additional_conditions": True,
        },
        pixart_sized,
        variant="alpha",
        notes="conditions in a dictionary",
    ),
    case(
        "HunyuanDiT2DModel",
        {
            **HEADS,
            "in_channels": 4,
            "patch_size": 2,
            "sample_size": 8,
            "hidden_size": 16,
            "num_layers": 6,
            "cross_attention_dim": WIDTH,
            "cross_attention_dim_t5": WIDTH,
            "pooled_projection_dim": 16,
            "text_len": TEXT,
            "text_len_t5": TEXT,
        },
        hunyuan_dit,
        text=("encoder_hidden_states", "encoder_hidden_states_t5"),
        notes="skip connections from the first half to the second; learned sigma",
    ),
    case(
        "LuminaNextDiT2DModel",
        {
            "sample_size": 8,
            "hidden_size": 16,
            "num_layers": 4,
            "num_attention_heads": 2,
            "num_kv_heads": 1,
            "multiple_of": 8,
            "cross_attention_dim": WIDTH,
        },
        lumina,
        time_values=rising,
        notes="single stream with gated cross-attention; learned sigma; time rises",
    ),
    case(
        "SanaTransformer2DModel",
        {
            **HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 4,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 8,
            "cross_attention_dim": 16,
            "caption_channels": WIDTH,
            "sample_size": 8,
        },
        masked,
        notes="linear attention; feed-forward is a convolution",
    ),
    case(
        "PRXTransformer2DModel",
        {
            "in_channels": 4,
            "context_in_dim": WIDTH,
            "hidden_size": 32,
            "mlp_ratio": 2.0,
            "num_heads": 2,
            "depth": 4,
            "axes_dim": [8, 8],
        },
        from_one,
        time_values=unit,
        notes="single stream beside constant text",
    ),
]
