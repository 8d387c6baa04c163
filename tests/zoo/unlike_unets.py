"""UNets over clips, waves and tokens, and of unlike blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor
from zoo.denoiser_case import Kwargs, case, randn, times, unit
from zoo.shared_inputs import TEXT, WIDTH
from zoo.unets import UNET, text, unet


def film(generator: Generator, batch: int, **more: Any) -> Kwargs:
    """A latent clip of two frames."""
    return text(generator, batch) | {"sample": randn(generator, batch, 4, 2, 8, 8), **more}


def motion(generator: Generator, batch: int) -> Kwargs:
    """The pipeline repeats the text for each frame."""
    return film(generator, batch, encoder_hidden_states=randn(generator, batch * 2, TEXT, WIDTH))


def i2vgen(generator: Generator, batch: int) -> Kwargs:
    return film(
        generator,
        batch,
        fps=torch.full((batch,), 16),
        image_latents=randn(generator, batch, 4, 2, 8, 8),
        image_embeddings=randn(generator, batch, 1, WIDTH),
    )


def svd(generator: Generator, batch: int) -> Kwargs:
    """Frames before channels; the picture's channels follow the latent's."""
    return {
        "sample": randn(generator, batch, 2, 8, 8, 8),
        "timestep": torch.tensor(1.6),
        "encoder_hidden_states": randn(generator, batch, 1, WIDTH),
        "added_time_ids": torch.tensor([[6.0, 127.0, 0.02]]).expand(batch, -1),
        "return_dict": False,
    }


def log_sigmas(num_steps: int) -> list[float]:
    """A quarter of the logarithm of the noise level."""
    return [1.6 - 3.2 * i / num_steps for i in range(num_steps)]


def cascade(generator: Generator, batch: int) -> Kwargs:
    return {
        "sample": randn(generator, batch, 4, 8, 8),
        "timestep_ratio": times(batch),
        "clip_text_pooled": randn(generator, batch, 1, WIDTH),
        "return_dict": False,
    }


def cascade_prior(generator: Generator, batch: int) -> Kwargs:
    more = {"clip_text": randn(generator, batch, TEXT, WIDTH), "clip_img": randn(generator, batch, 1, WIDTH)}
    return cascade(generator, batch) | more


def cascade_decoder(generator: Generator, batch: int) -> Kwargs:
    return cascade(generator, batch) | {"effnet": randn(generator, batch, 4, 2, 2)}


def wave(generator: Generator, batch: int) -> Kwargs:
    return {"sample": randn(generator, batch, 2, 32), "timestep": torch.tensor(1.0), "return_dict": False}


def trajectory(generator: Generator, batch: int) -> Kwargs:
    """A plan of 16 states of 14 numbers, as in planning by diffusion; time per sample."""
    return {
        "sample": randn(generator, batch, 14, 16),
        "timestep": torch.full((batch,), 999),
        "return_dict": True,
    }


def maskgit(generator: Generator, batch: int) -> Kwargs:
    """Tokens of a codebook; the last entry of the vocabulary is the mask. There is no time."""
    return {
        "input_ids": torch.full((batch, 4, 4), 32),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "pooled_text_emb": randn(generator, batch, WIDTH),
        "micro_conds": torch.tensor([[16.0, 16.0, 0.0, 0.0, 6.0]]).expand(batch, -1),
    }


def unmask(inputs: Kwargs, outputs: list[Tensor], step: int, num_steps: int) -> Kwargs:
    """Settle the next rows of tokens on their likeliest value."""
    ids = inputs["input_ids"].clone()
    rows = slice(4 * step // num_steps, 4 * (step + 1) // num_steps)
    ids[:, rows] = outputs[0].argmax(1)[:, rows]
    return {**inputs, "input_ids": ids}


CASCADE: Kwargs = {
    "in_channels": 4,
    "out_channels": 4,
    "timestep_ratio_embedding_dim": 8,
    "conditioning_dim": 16,
    "block_out_channels": (16, 16),
    "num_attention_heads": (2, 2),
    "down_num_layers_per_block": (2, 3),
    "up_num_layers_per_block": (3, 2),
    "clip_text_pooled_in_channels": WIDTH,
    "clip_seq": 2,
    "dropout": (0.0, 0.0),
}

CASES = [
    unet(
        "UNet3DConditionModel",
        {
            **UNET,
            "down_block_types": ("CrossAttnDownBlock3D", "CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D", "CrossAttnUpBlock3D"),
            "cross_attention_dim": WIDTH,
            "attention_head_dim": 4,
        },
        film,
    ),
    unet(
        "I2VGenXLUNet",
        {
            **UNET,
            "down_block_types": ("CrossAttnDownBlock3D", "CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D", "CrossAttnUpBlock3D"),
            "cross_attention_dim": WIDTH,
            "attention_head_dim": 2,
        },
        i2vgen,
    ),
    unet(
        "UNetMotionModel",
        {
            **UNET,
            "down_block_types": ("CrossAttnDownBlockMotion", "CrossAttnDownBlockMotion", "DownBlockMotion"),
            "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion", "CrossAttnUpBlockMotion"),
            "cross_attention_dim": WIDTH,
            "num_attention_heads": 2,
            "motion_num_attention_heads": 2,
            "motion_max_seq_length": 4,
        },
        motion,
    ),
    unet(
        "UNetSpatioTemporalConditionModel",
        {
            "sample_size": 8,
            "block_out_channels": (32, 32, 32),
            "layers_per_block": 1,
            "down_block_types": ("CrossAttnDownBlockSpatioTemporal",) * 2 + ("DownBlockSpatioTemporal",),
            "up_block_types": ("UpBlockSpatioTemporal",) + ("CrossAttnUpBlockSpatioTemporal",) * 2,
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 24,
            "cross_attention_dim": WIDTH,
            "num_attention_heads": (2, 2, 2),
            "num_frames": 2,
        },
        svd,
        time_values=log_sigmas,
        notes="frames first; 8 channels in, 4 out; time may be negative",
    ),
    unet(
        "StableCascadeUNet",
        {
            **CASCADE,
            "block_types_per_layer": (("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),)
            * 2,
            "clip_text_in_channels": WIDTH,
            "clip_image_in_channels": WIDTH,
            "switch_level": (False,),
        },
        cascade_prior,
        time=("timestep_ratio",),
        time_values=unit,
        text=("clip_text_pooled", "clip_text"),
        notes="lists of lists of unlike blocks; skips between depths",
    ),
    unet(
        "StableCascadeUNet",
        {
            **CASCADE,
            "patch_size": 2,
            "effnet_in_channels": 4,
            "pixel_mapper_in_channels": 3,
            "self_attn": True,
            "timestep_conditioning_type": ("sca",),
            "block_types_per_layer": (
                ("SDCascadeResBlock", "SDCascadeTimestepBlock"),
                ("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),
            ),
        },
        cascade_decoder,
        variant="decoder",
        time=("timestep_ratio",),
        time_values=unit,
        text=("clip_text_pooled",),
        notes="lists of lists of unlike blocks; skips between depths",
    ),
    unet(
        "UNet1DModel",
        {
            "sample_size": 32,
            "sample_rate": 16000,
            "in_channels": 2,
            "out_channels": 2,
            "extra_in_channels": 8,
            "time_embedding_type": "fourier",
            "block_out_channels": (16, 32, 32),
            "time_embedding_dim": 8,
            "down_block_types": ("DownBlock1DNoSkip", "DownBlock1D", "AttnDownBlock1D"),
            "up_block_types": ("AttnUpBlock1D", "UpBlock1D", "UpBlock1DNoSkip"),
            "flip_sin_to_cos": True,
        },
        wave,
        text=(),
        time_values=unit,
    ),
    unet(
        "UNet1DModel",
        {
            "sample_size": 16,
            "in_channels": 14,
            "out_channels": 14,
            "time_embedding_type": "positional",
            "block_out_channels": (8, 16, 16),
            "use_timestep_embedding": True,
            "act_fn": "mish",
            "flip_sin_to_cos": False,
            "freq_shift": 1,
            "norm_num_groups": 4,
            "layers_per_block": 1,
            "downsample_each_block": False,
            "down_block_types": ("DownResnetBlock1D",) * 3,
            "up_block_types": ("UpResnetBlock1D",) * 2,
            "mid_block_type": "MidResTemporalBlock1D",
            "out_block_type": "OutConv1DBlock",
        },
        trajectory,
        variant="trajectory",
        text=(),
    ),
    case(
        "UVit2DModel",
        {
            "hidden_size": 16,
            "cond_embed_dim": WIDTH,
            "micro_cond_encode_dim": 2,
            "micro_cond_embed_dim": 10,
            "encoder_hidden_size": WIDTH,
            "vocab_size": 33,
            "codebook_size": 32,
            "in_channels": 16,
            "block_out_channels": 16,
            "num_res_blocks": 1,
            "downsample": True,
            "upsample": True,
            "block_num_heads": 2,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "sample_size": 4,
        },
        maskgit,
        latents=("input_ids",),
        time=(),
        step=unmask,
        notes="predicts tokens; no time argument, the masked tokens tell it; the forward returns a bare tensor",
    ),
]
