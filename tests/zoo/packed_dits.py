"""Image transformers that take the picture as a sequence of packed patches with position ids."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator
from zoo import qwen_dits
from zoo.denoiser_case import Kwargs, case, grid_ids, randn, times, unit
from zoo.qwen_dits import TEXT, TOKENS, WIDTH, only_picture

FLUX: Kwargs = {
    "in_channels": 16,
    "num_layers": 3,
    "num_single_layers": 3,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": WIDTH,
    "axes_dims_rope": (4, 4, 8),
}
POOLED_FLUX: Kwargs = {**FLUX, "pooled_projection_dim": WIDTH}


def packed(generator: Generator, batch: int, axes: int = 3, **more: Any) -> Kwargs:
    """Sixteen tokens of a 4 x 4 grid beside six tokens of text."""
    return {
        "hidden_states": randn(generator, batch, TOKENS, 16),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "timestep": times(batch),
        "img_ids": grid_ids(4, 4, axes),
        "txt_ids": torch.zeros(TEXT, axes),
        "return_dict": False,
        **more,
    }


def flux(generator: Generator, batch: int) -> Kwargs:
    pooled = randn(generator, batch, WIDTH)
    return packed(generator, batch, pooled_projections=pooled, guidance=times(batch, 3.5))


def flux_schnell(generator: Generator, batch: int) -> Kwargs:
    return flux(generator, batch) | {"guidance": None}


def kontext(generator: Generator, batch: int) -> Kwargs:
    """The reference picture's tokens follow the latent's: the pipeline drops them from the output."""
    inputs = flux(generator, batch)
    reference = grid_ids(4, 4)
    reference[:, 0] = 1
    inputs["hidden_states"] = torch.cat([inputs["hidden_states"], randn(generator, batch, TOKENS, 16)], dim=1)
    return inputs | {"img_ids": torch.cat([inputs["img_ids"], reference])}


def chroma(generator: Generator, batch: int) -> Kwargs:
    mask = torch.ones(batch, TEXT + TOKENS, dtype=torch.bool)
    mask[:, TEXT - 2 : TEXT] = False
    return packed(generator, batch, attention_mask=mask)


def flux2(generator: Generator, batch: int) -> Kwargs:
    return packed(
        generator, batch, axes=4, guidance=times(batch, 3.5), img_ids=grid_ids(4, 4, axes=4, first=1)
    )


def flux3(generator: Generator, batch: int) -> Kwargs:
    reference, ids = randn(generator, batch, TOKENS, 16), grid_ids(4, 4, axes=4)
    return packed(generator, batch, axes=4, image_cond_hidden_states=reference, image_cond_ids=ids)


def bria(generator: Generator, batch: int) -> Kwargs:
    return packed(generator, batch, timestep=times(batch, 1000.0))


def fibo(generator: Generator, batch: int) -> Kwargs:
    layers = [randn(generator, batch, TEXT, WIDTH) for _ in range(6)]
    return bria(generator, batch) | {"text_encoder_layers": layers}


def no_guidance(generator: Generator, batch: int) -> Kwargs:
    return packed(generator, batch)


def ideogram4(generator: Generator, batch: int) -> Kwargs:
    """One sequence with text rows first; the text's rows of the latent are zero."""
    latent = torch.cat([torch.zeros(batch, TEXT, 16), randn(generator, batch, TOKENS, 16)], dim=1)
    text = torch.cat([randn(generator, batch, TEXT, WIDTH), torch.zeros(batch, TOKENS, WIDTH)], dim=1)
    ids = torch.cat([torch.arange(TEXT)[:, None].expand(-1, 3), TEXT + grid_ids(4, 4).long()])
    return {
        "hidden_states": latent,
        "encoder_hidden_states": text,
        "timestep": times(batch),
        "position_ids": ids.expand(batch, -1, -1),
        "segment_ids": torch.zeros(batch, TEXT + TOKENS, dtype=torch.long),
        "indicator": torch.tensor([3] * TEXT + [2] * TOKENS).expand(batch, -1),
        "return_dict": False,
    }


def krea2(generator: Generator, batch: int) -> Kwargs:
    """The text is a stack of layers of the text encoder."""
    return {
        "hidden_states": randn(generator, batch, TOKENS, 16),
        "encoder_hidden_states": randn(generator, batch, TEXT, 3, WIDTH),
        "timestep": times(batch),
        "position_ids": torch.cat([torch.zeros(TEXT, 3), grid_ids(4, 4)]),
        "encoder_attention_mask": torch.arange(TEXT).expand(batch, -1) < TEXT - 1,
        "return_dict": False,
    }


CASES = [
    case(
        "FluxTransformer2DModel",
        {**POOLED_FLUX, "guidance_embeds": True},
        flux,
        time_values=unit,
        notes="pairs, then single stream",
    ),
    case(
        "FluxTransformer2DModel",
        POOLED_FLUX,
        flux_schnell,
        variant="schnell",
        time_values=unit,
        notes="no guidance embedding",
    ),
    case(
        "FluxTransformer2DModel",
        {**POOLED_FLUX, "guidance_embeds": True},
        kontext,
        variant="kontext",
        time_values=unit,
        output=only_picture,
        notes="reference tokens behind the latent's",
    ),
    case(
        "Flux2Transformer2DModel",
        {**FLUX, "axes_dims_rope": (4, 4, 4, 4), "timestep_guidance_channels": 16},
        flux2,
        time_values=unit,
        notes="pairs, then one tensor; modulation shared by all blocks",
    ),
    case(
        "Flux3Transformer2DModel",
        {**FLUX, "cond_in_channels": 16, "axes_dims_rope": (4, 4, 4, 4), "timestep_channels": 16},
        flux3,
        time_values=unit,
        notes="three separate streams, then pairs; reference tokens are cut at the end",
    ),
    case(
        "ChromaTransformer2DModel",
        {**FLUX, "approximator_num_channels": 16, "approximator_hidden_dim": 16, "approximator_layers": 2},
        chroma,
        time_values=unit,
        notes="pairs, then single stream; modulation of all blocks comes from one table",
    ),
    case("BriaTransformer2DModel", FLUX, bria, notes="pairs, then single stream"),
    case(
        "BriaFiboTransformer2DModel",
        {**FLUX, "text_encoder_dim": WIDTH},
        fibo,
        text=("encoder_hidden_states", "text_encoder_layers"),
        notes="half of the text's channels is replaced before each block; joined and cut around single blocks",
    ),
    case(
        "LongCatImageTransformer2DModel",
        {**FLUX, "pooled_projection_dim": WIDTH},
        no_guidance,
        time_values=unit,
        notes="pairs throughout",
    ),
    case(
        "OvisImageTransformer2DModel",
        {**FLUX, "out_channels": 16},
        no_guidance,
        time_values=unit,
        notes="pairs throughout",
    ),
    *qwen_dits.CASES,
    case(
        "Ideogram4Transformer2DModel",
        {
            "in_channels": 16,
            "num_layers": 4,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "adaln_dim": 16,
            "llm_features_dim": WIDTH,
            "mrope_section": (4, 2, 2),
        },
        ideogram4,
        time_values=unit,
        notes="single stream; text rows are part of the latent argument",
    ),
    case(
        "Krea2Transformer2DModel",
        {
            "in_channels": 16,
            "num_layers": 4,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "intermediate_size": 32,
            "timestep_embed_dim": 16,
            "text_hidden_dim": WIDTH,
            "num_text_layers": 3,
            "text_num_attention_heads": 2,
            "text_num_key_value_heads": 2,
            "text_intermediate_size": 32,
            "axes_dims_rope": (4, 4, 8),
        },
        krea2,
        time_values=unit,
        notes="single stream after a text fusion of its own blocks",
    ),
]
