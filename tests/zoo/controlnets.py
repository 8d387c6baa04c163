"""Networks that run beside a denoiser and must not be cached as one: their output is a list of residuals."""

from __future__ import annotations

from torch import Generator
from zoo import image_dits, packed_dits, paired_dits, qwen_dits, unets
from zoo.denoiser_case import Inputs, Kwargs, case, randn, train_steps, unit

PICTURE = "conditioning_embedding_out_channels"


def controlled(inputs: Inputs, *shape: int) -> Inputs:
    """The inputs of the denoiser and the control picture of that shape."""

    def make(generator: Generator, batch: int) -> Kwargs:
        return inputs(generator, batch) | {
            "controlnet_cond": randn(generator, batch, *shape),
            "conditioning_scale": 0.7,
        }

    return make


def without(config: Kwargs, *keys: str) -> Kwargs:
    return {key: value for key, value in config.items() if key not in keys}


SD3: Kwargs = {
    **image_dits.HEADS,
    "sample_size": 8,
    "in_channels": 4,
    "num_layers": 3,
    "joint_attention_dim": 16,
    "caption_projection_dim": 16,
    "pooled_projection_dim": 16,
    "out_channels": 4,
    "pos_embed_max_size": 8,
}
SANA: Kwargs = {
    **image_dits.HEADS,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 3,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 8,
    "cross_attention_dim": 16,
    "caption_channels": 16,
    "sample_size": 8,
}
CASES = [
    case(
        "ControlNetModel",
        {**without(unets.SD, "sample_size", "up_block_types"), PICTURE: (4, 4)},
        controlled(unets.text, 3, 16, 16),
        latents=("sample",),
        time_values=train_steps,
    ),
    case(
        "FluxControlNetModel",
        packed_dits.POOLED_FLUX,
        controlled(packed_dits.flux_schnell, 16, 16),
        time_values=unit,
    ),
    case("SD3ControlNetModel", SD3, controlled(paired_dits.sd3, 4, 8, 8)),
    case(
        "QwenImageControlNetModel",
        qwen_dits.QWEN,
        controlled(qwen_dits.qwen, 16, 16),
        time_values=unit,
    ),
    case("SanaControlNetModel", SANA, controlled(image_dits.masked, 4, 8, 8)),
]
