"""UNets over pictures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator
from zoo.denoiser_case import Case, Inputs, Kwargs, case, randn, times, train_steps, unit
from zoo.shared_inputs import TEXT, WIDTH

NOW = torch.tensor(999)  # pipelines pass the noise scheduler's own scalar
CHANNELS = (8, 16, 16)
UNET: Kwargs = {"sample_size": 8, "block_out_channels": CHANNELS, "layers_per_block": 2, "norm_num_groups": 4}

SD: Kwargs = {
    **UNET,
    "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": WIDTH,
    "attention_head_dim": 4,
}

SDXL: Kwargs = {
    **SD,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 8 * 6 + WIDTH,
    "transformer_layers_per_block": (1, 2, 2),
    "use_linear_projection": True,
}


def unconditional(generator: Generator, batch: int) -> Kwargs:
    return {"sample": randn(generator, batch, 3, 8, 8), "timestep": NOW, "return_dict": False}


def text(generator: Generator, batch: int, channels: int = 4, **more: Any) -> Kwargs:
    return {
        "sample": randn(generator, batch, channels, 8, 8),
        "timestep": NOW,
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "return_dict": False,
        **more,
    }


def sdxl(generator: Generator, batch: int) -> Kwargs:
    sizes = torch.tensor([[16.0, 16.0, 0.0, 0.0, 16.0, 16.0]]).expand(batch, -1)
    added = {"text_embeds": randn(generator, batch, WIDTH), "time_ids": sizes}
    return text(generator, batch, added_cond_kwargs=added, timestep_cond=None)


def inpainting(generator: Generator, batch: int) -> Kwargs:
    """Latent, mask and masked picture are one argument."""
    return text(generator, batch, channels=9)


def controlled(generator: Generator, batch: int) -> Kwargs:
    """A ControlNet's residuals, one per skip connection."""
    shapes = [(8, 8)] * 3 + [(8, 4)] + [(16, 4)] * 2 + [(16, 2)] * 3
    residuals = tuple(randn(generator, batch, width, size, size) for width, size in shapes)
    middle = randn(generator, batch, 16, 2, 2)
    return text(
        generator, batch, down_block_additional_residuals=residuals, mid_block_additional_residual=middle
    )


def consistency(generator: Generator, batch: int) -> Kwargs:
    return text(generator, batch, timestep_cond=randn(generator, batch, 8))


def labelled(generator: Generator, batch: int) -> Kwargs:
    return text(generator, batch, channels=7, class_labels=torch.full((batch,), 20))


def upscaler(generator: Generator, batch: int) -> Kwargs:
    condition = randn(generator, batch, WIDTH)
    return text(
        generator, batch, channels=8, timestep_cond=condition, encoder_attention_mask=torch.ones(batch, TEXT)
    )


def kandinsky2(generator: Generator, batch: int) -> Kwargs:
    """No text: a picture's embedding."""
    return text(generator, batch, added_cond_kwargs={"image_embeds": randn(generator, batch, WIDTH)}) | {
        "encoder_hidden_states": None
    }


def kandinsky3(generator: Generator, batch: int) -> Kwargs:
    return text(generator, batch, encoder_attention_mask=torch.ones(batch, TEXT))


def audioldm2(generator: Generator, batch: int) -> Kwargs:
    return text(
        generator,
        batch,
        encoder_hidden_states_1=randn(generator, batch, TEXT, WIDTH),
        encoder_attention_mask_1=torch.ones(batch, TEXT),
    )


def dreamlite(generator: Generator, batch: int) -> Kwargs:
    sizes = torch.tensor([[16.0, 16.0, 0.0, 0.0, 16.0, 16.0]]).expand(batch, -1)
    mask = torch.arange(TEXT).expand(batch, -1) < TEXT - 1
    return text(
        generator,
        batch,
        timestep=times(batch, 999.0),
        added_cond_kwargs={"time_ids": sizes},
        encoder_attention_mask=mask,
    )


def control_xs(generator: Generator, batch: int) -> Kwargs:
    return text(generator, batch, controlnet_cond=randn(generator, batch, 3, 64, 64))


DEPTHS = "skip connections between depths"
SAMPLE = ("sample",)


def unet(cls: str, config: Kwargs, inputs: Inputs, **fields: Any) -> Case:
    defaults = {"latents": SAMPLE, "time_values": train_steps, "notes": DEPTHS}
    return case(cls, config, inputs, **{**defaults, **fields})


CASES = [
    unet(
        "UNet2DModel",
        {
            **UNET,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": 4,
        },
        unconditional,
        text=(),
    ),
    unet(
        "UNet2DModel",
        {
            **UNET,
            "down_block_types": ("SkipDownBlock2D",) * 3,
            "up_block_types": ("SkipUpBlock2D",) * 3,
            "attention_head_dim": 4,
            "time_embedding_type": "fourier",
        },
        lambda generator, batch: unconditional(generator, batch) | {"timestep": torch.tensor(1.0)},
        variant="skip",
        time_values=unit,
        text=(),
        notes="a second, picture-like stream beside the features; the output is divided by the time",
    ),
    unet("UNet2DConditionModel", SD, text),
    unet("UNet2DConditionModel", SDXL, sdxl, variant="sdxl"),
    unet(
        "UNet2DConditionModel",
        {**SD, "in_channels": 9},
        inpainting,
        variant="inpaint",
        notes="9 channels in, 4 out",
    ),
    unet(
        "UNet2DConditionModel",
        SD,
        controlled,
        variant="controlnet",
        notes="residuals added to skips and middle",
    ),
    unet("UNet2DConditionModel", {**SD, "time_cond_proj_dim": 8}, consistency, variant="lcm"),
    unet(
        "UNet2DConditionModel",
        {**SD, "in_channels": 7, "num_class_embeds": 40, "only_cross_attention": (True, True, False)},
        labelled,
        variant="upscale",
    ),
    unet(
        "UNet2DConditionModel",
        {
            **UNET,
            "block_out_channels": (32, 64, 64),
            "norm_num_groups": None,
            "in_channels": 8,
            "out_channels": 5,
            "layers_per_block": 3,
            "cross_attention_dim": WIDTH,
            "attention_head_dim": 4,
            "act_fn": "gelu",
            "conv_in_kernel": 1,
            "conv_out_kernel": 1,
            "down_block_types": ("KDownBlock2D", "KCrossAttnDownBlock2D", "KCrossAttnDownBlock2D"),
            "up_block_types": ("KCrossAttnUpBlock2D", "KCrossAttnUpBlock2D", "KUpBlock2D"),
            "mid_block_type": None,
            "resnet_time_scale_shift": "scale_shift",
            "only_cross_attention": False,
            "time_cond_proj_dim": WIDTH,
            "time_embedding_type": "fourier",
            "timestep_post_act": "gelu",
            "encoder_hid_dim": WIDTH,
        },
        upscaler,
        variant="k-upscaler",
        notes="no middle; 8 channels in, 5 out",
    ),
    unet(
        "UNet2DConditionModel",
        {
            **SD,
            "out_channels": 8,
            "down_block_types": ("ResnetDownsampleBlock2D",) + ("SimpleCrossAttnDownBlock2D",) * 2,
            "up_block_types": ("SimpleCrossAttnUpBlock2D",) * 2 + ("ResnetUpsampleBlock2D",),
            "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
            "encoder_hid_dim": WIDTH,
            "encoder_hid_dim_type": "image_proj",
            "addition_embed_type": "image",
            "resnet_time_scale_shift": "scale_shift",
            "class_embed_type": None,
        },
        kandinsky2,
        variant="kandinsky2",
        text=("added_cond_kwargs",),
        notes="no text argument; learned sigma",
    ),
    unet(
        "UNetControlNetXSModel",
        {
            **{
                key: SD[key]
                for key in (
                    "sample_size",
                    "block_out_channels",
                    "norm_num_groups",
                    "down_block_types",
                    "up_block_types",
                    "cross_attention_dim",
                )
            },
            "num_attention_heads": 2,
            "ctrl_block_out_channels": (4, 8, 8),
            "ctrl_num_attention_heads": 2,
            "ctrl_max_norm_num_groups": 4,
            "ctrl_conditioning_embedding_out_channels": (4, 4, 4, 4),
        },
        control_xs,
        notes="two streams with two sets of skip connections; up blocks modify their input in place",
    ),
    unet(
        "pipelines.audioldm2.modeling_audioldm2:AudioLDM2UNet2DConditionModel",
        {**SD, "cross_attention_dim": ((None, WIDTH, WIDTH),) * 3},
        audioldm2,
        text=("encoder_hidden_states", "encoder_hidden_states_1"),
        notes="two texts by turns inside a depth",
    ),
    unet(
        "DreamLiteUNetModel",
        {
            **UNET,
            "cross_attention_dim": WIDTH,
            "attention_head_dim": 4,
            "addition_embed_type": "time",
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 48,
            "ff_mult": 2,
            "use_linear_projection": True,
            "transformer_layers_per_block": 1,
        },
        dreamlite,
    ),
    unet(
        "Kandinsky3UNet",
        {
            "time_embedding_dim": 8,
            "groups": 2,
            "attention_head_dim": 4,
            "layers_per_block": 3,
            "block_out_channels": (8, 16, 16),
            "cross_attention_dim": WIDTH,
            "encoder_hid_dim": WIDTH,
        },
        kandinsky3,
    ),
]
