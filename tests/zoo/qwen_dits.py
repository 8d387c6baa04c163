"""Image transformers of the Qwen family, which take packed patches and count them by picture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor
from zoo.denoiser_case import Kwargs, case, randn, times, unit

TOKENS, TEXT, WIDTH = 16, 6, 16
QWEN: Kwargs = {
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 4,
    "num_layers": 4,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": WIDTH,
    "axes_dims_rope": (4, 4, 8),
}


def qwen(generator: Generator, batch: int) -> Kwargs:
    return {
        "hidden_states": randn(generator, batch, TOKENS, 16),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "encoder_hidden_states_mask": torch.arange(TEXT).expand(batch, -1) < TEXT - 1,
        "timestep": times(batch),
        "img_shapes": [[(1, 4, 4)]] * batch,
        "return_dict": False,
    }


def qwen_edit(generator: Generator, batch: int) -> Kwargs:
    inputs = qwen(generator, batch)
    inputs["hidden_states"] = torch.cat([inputs["hidden_states"], randn(generator, batch, TOKENS, 16)], dim=1)
    return inputs | {"img_shapes": [[(1, 4, 4), (1, 4, 4)]] * batch}


def qwen21(generator: Generator, batch: int) -> Kwargs:
    """Each vision-language slot of the mask stands for 2 x 2 latent tokens; the last four slots are the target."""
    mask = torch.zeros(batch, TEXT + TOKENS // 4, dtype=torch.bool)
    mask[:, TEXT:] = True
    return {
        "hidden_states": randn(generator, batch, TOKENS, 16),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "timestep": times(batch),
        "img_shapes": [[(1, 4, 4)]] * batch,
        "img_mask": mask,
        "return_dict": False,
    }


def only_picture(value: Any) -> list[Tensor]:
    """Without the tokens of reference pictures, which follow the latent's."""
    return [value[0][:, :TOKENS]]


def last_tokens(value: Any) -> list[Tensor]:
    return [value[0][:, -TOKENS:]]


CASES = [
    case("QwenImageTransformer2DModel", QWEN, qwen, time_values=unit, notes="pairs (encoder, hidden)"),
    case(
        "QwenImageTransformer2DModel",
        {**QWEN, "zero_cond_t": True},
        qwen_edit,
        variant="edit",
        time_values=unit,
        output=only_picture,
        notes="reference tokens at time 0 behind the latent's; doubled modulation",
    ),
    case(
        "QwenImage21Transformer2DModel",
        {
            "in_channels": 16,
            "out_channels": 16,
            "num_layers": 4,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "context_in_dim": WIDTH,
            "mlp_ratio": 2,
            "axes_dims_rope": (4, 4, 8),
        },
        qwen21,
        time_values=unit,
        output=last_tokens,
        notes="one joint sequence; the output holds the text's rows too; optional key/value cache",
    ),
    case(
        "NucleusMoEImageTransformer2DModel",
        {
            **QWEN,
            "num_layers": 5,
            "num_experts": 4,
            "moe_intermediate_dim": 16,
            "capacity_factors": [2.0] * 5,
            "mlp_ratio": 2.0,
        },
        qwen,
        time_values=unit,
        notes="single stream with cross-attention to constant text; experts take tokens by capacity",
    ),
]
