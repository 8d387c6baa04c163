"""Video transformers whose blocks take and return a pair: clip and text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator
from zoo.denoiser_case import Kwargs, case, randn, rotary, times
from zoo.shared_inputs import HEADS, TEXT, WIDTH, clip, mask

WIDE_HEADS: Kwargs = {"num_attention_heads": 2, "attention_head_dim": 16}


def masked(generator: Generator, batch: int) -> Kwargs:
    return clip(generator, batch, encoder_attention_mask=mask(batch, torch.long))


def frames_first(generator: Generator, batch: int, channels: int = 4, **more: Any) -> Kwargs:
    return clip(generator, batch, hidden_states=randn(generator, batch, 2, channels, 4, 4), **more)


def cogvideox_image(generator: Generator, batch: int) -> Kwargs:
    """The picture's channels follow the latent's."""
    return frames_first(generator, batch, channels=8, image_rotary_emb=rotary(8, 8), ofs=times(batch, 2.0))


def consis_id(generator: Generator, batch: int) -> Kwargs:
    face = [randn(generator, batch, 4, 8) for _ in range(2)]
    return frames_first(generator, batch, id_cond=randn(generator, batch, 8), id_vit_hidden=face)


def hunyuan(generator: Generator, batch: int) -> Kwargs:
    pooled = randn(generator, batch, WIDTH)
    return masked(generator, batch) | {"pooled_projections": pooled, "guidance": times(batch, 6000.0)}


def hunyuan15(generator: Generator, batch: int) -> Kwargs:
    """Latent, condition and mask are one argument; three texts are sorted by validity into one sequence."""
    return clip(
        generator,
        batch,
        channels=9,
        encoder_attention_mask=mask(batch, torch.long),
        encoder_hidden_states_2=randn(generator, batch, 4, WIDTH),
        encoder_attention_mask_2=torch.ones(batch, 4, dtype=torch.long),
        image_embeds=randn(generator, batch, 3, WIDTH),
    )


def framepack(generator: Generator, batch: int) -> Kwargs:
    return hunyuan(generator, batch) | {
        "hidden_states": randn(generator, batch, 4, 2, 8, 8),
        "image_embeds": randn(generator, batch, 3, WIDTH),
        "indices_latents": torch.arange(8, 10),
        "latents_clean": randn(generator, batch, 4, 2, 8, 8),
        "indices_latents_clean": torch.tensor([0, 7]),
        "latents_history_2x": randn(generator, batch, 4, 2, 8, 8),
        "indices_latents_history_2x": torch.arange(5, 7),
        "latents_history_4x": randn(generator, batch, 4, 4, 8, 8),
        "indices_latents_history_4x": torch.arange(1, 5),
    }


def easy_animate(generator: Generator, batch: int) -> Kwargs:
    return clip(generator, batch, encoder_hidden_states_t5=randn(generator, batch, TEXT, WIDTH))


def motif(generator: Generator, batch: int) -> Kwargs:
    picture = randn(generator, batch, 3, WIDTH)
    return clip(
        generator, batch, channels=9, encoder_attention_mask=mask(batch, torch.long), image_embeds=picture
    )


COGVIDEOX: Kwargs = {
    **HEADS,
    "in_channels": 4,
    "out_channels": 4,
    "time_embed_dim": 8,
    "text_embed_dim": WIDTH,
    "num_layers": 4,
    "sample_width": 4,
    "sample_height": 4,
    "sample_frames": 5,
    "max_text_seq_length": TEXT,
}

HUNYUAN: Kwargs = {
    **WIDE_HEADS,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 3,
    "num_single_layers": 3,
    "num_refiner_layers": 1,
    "text_embed_dim": WIDTH,
    "pooled_projection_dim": WIDTH,
    "rope_axes_dim": (4, 6, 6),
    "mlp_ratio": 2.0,
}

CASES = [
    case(
        "CogVideoXTransformer3DModel", COGVIDEOX, frames_first, notes="frames first; pairs (hidden, encoder)"
    ),
    case(
        "CogVideoXTransformer3DModel",
        {**COGVIDEOX, "in_channels": 8, "ofs_embed_dim": 8, "use_rotary_positional_embeddings": True},
        cogvideox_image,
        variant="i2v",
        notes="8 channels in, 4 out",
    ),
    case(
        "ConsisIDTransformer3DModel",
        {
            **COGVIDEOX,
            "is_train_face": True,
            "cross_attn_dim_head": 8,
            "cross_attn_num_heads": 2,
            "LFE_id_dim": 8,
            "LFE_vit_dim": 8,
            "LFE_depth": 2,
            "LFE_dim_head": 4,
            "LFE_num_heads": 2,
            "LFE_num_id_token": 2,
            "LFE_num_querie": 3,
            "LFE_output_dim": 10,
            "LFE_ff_mult": 1,
            "LFE_num_scale": 2,
        },
        consis_id,
        notes="as CogVideoX; a face's residual is added after every second block",
    ),
    case(
        "MochiTransformer3DModel",
        {
            **HEADS,
            "num_layers": 4,
            "pooled_projection_dim": 16,
            "in_channels": 4,
            "text_embed_dim": WIDTH,
            "time_embed_dim": 4,
            "max_sequence_length": TEXT,
        },
        lambda generator, batch: masked(generator, batch) | {"encoder_attention_mask": mask(batch)},
        notes="pairs; the last block passes the text on unchanged",
    ),
    case(
        "HunyuanVideoTransformer3DModel",
        HUNYUAN,
        hunyuan,
        notes="pairs throughout; text refiner depends on the time",
    ),
    case(
        "HunyuanVideoTransformer3DModel",
        {**HUNYUAN, "guidance_embeds": False, "image_condition_type": "token_replace"},
        lambda generator, batch: hunyuan(generator, batch) | {"guidance": None},
        variant="i2v",
        notes="the first frame's tokens take another time",
    ),
    case(
        "HunyuanVideo15Transformer3DModel",
        {
            **WIDE_HEADS,
            "in_channels": 9,
            "out_channels": 4,
            "num_layers": 4,
            "num_refiner_layers": 1,
            "mlp_ratio": 2.0,
            "text_embed_dim": WIDTH,
            "text_embed_2_dim": WIDTH,
            "image_embed_dim": WIDTH,
            "rope_axes_dim": (4, 6, 6),
        },
        hunyuan15,
        text=("encoder_hidden_states", "encoder_hidden_states_2"),
        notes="pairs; 9 channels in, 4 out; reads a device value to tell text-to-video",
    ),
    case(
        "HunyuanVideoFramepackTransformer3DModel",
        {**HUNYUAN, "has_image_proj": True, "image_proj_dim": WIDTH, "has_clean_x_embedder": True},
        framepack,
        notes="pairs; history tokens before the latent's are cut at the end",
    ),
    case(
        "EasyAnimateTransformer3DModel",
        {
            **WIDE_HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "patch_size": 2,
            "sample_width": 4,
            "sample_height": 4,
            "num_layers": 4,
            "mmdit_layers": 3,
            "time_embed_dim": 8,
            "text_embed_dim": WIDTH,
            "text_embed_dim_t5": WIDTH,
            "after_norm": True,
        },
        easy_animate,
        notes="pairs (hidden, encoder)",
    ),
    case(
        "MotifVideoTransformer3DModel",
        {
            **WIDE_HEADS,
            "in_channels": 9,
            "out_channels": 4,
            "num_layers": 3,
            "num_single_layers": 5,
            "num_decoder_layers": 2,
            "mlp_ratio": 2.0,
            "text_embed_dim": WIDTH,
            "image_embed_dim": WIDTH,
            "rope_axes_dim": (4, 6, 6),
            "enable_text_cross_attention_dual": True,
            "enable_text_cross_attention_single": True,
        },
        motif,
        notes="pairs; the last blocks start again from the first embedding and take the picture as their text",
    ),
]
