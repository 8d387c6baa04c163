"""Denoisers at their real sizes, with random weights: what a loop calls, and a tiny one of each kind to try things on a CPU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffusers
import torch
from torch import Tensor, nn

Arguments = dict[str, Any]
Make = Callable[..., Tensor]
"""Draws noise of a shape."""


@dataclass(frozen=True)
class RealModel:
    """A denoiser of a published model's sizes.

    Attributes:
        net: the denoiser.
        call: what it is called with at a latent and a time in 0..1.
        latent: at the start.
        middle: a module inside a block in the middle: it runs if and only if the blocks are computed.
    """

    net: nn.Module
    call: Callable[[Tensor, float], Arguments]
    latent: Tensor
    middle: nn.Module


@dataclass(frozen=True)
class Recipe:
    """How one is made.

    Attributes:
        kind: the class in Diffusers.
        config, tiny: its configuration; what replaces entries of it in the tiny one.
        latent, tiny_latent: shapes of the latent.
        arguments: what does not change during a loop, from the configuration, the latent and what draws noise.
        middle: path of the module in the middle.
        latent_name: of the argument.
        time: the time's unit: what 1 is called.
    """

    kind: str
    config: Arguments
    tiny: Arguments
    latent: tuple[int, ...]
    tiny_latent: tuple[int, ...]
    arguments: Callable[[Arguments, Tensor, Make], Arguments]
    middle: str
    latent_name: str = "hidden_states"
    time: float = 1.0


def _flux(config: Arguments, latent: Tensor, noise: Make) -> Arguments:
    tokens, text = latent.shape[1], 512 if latent.shape[1] > 64 else 8
    return {
        "encoder_hidden_states": noise(1, text, config["joint_attention_dim"]),
        "pooled_projections": noise(1, config["pooled_projection_dim"]),
        "guidance": noise(1).fill_(3.5), "img_ids": noise(tokens, 3).zero_(), "txt_ids": noise(text, 3).zero_(),
    }  # fmt: skip


def _sd3(config: Arguments, latent: Tensor, noise: Make) -> Arguments:
    batch, text = len(latent), 333 if latent.shape[-1] > 16 else 8
    return {
        "encoder_hidden_states": noise(batch, text, config["joint_attention_dim"]),
        "pooled_projections": noise(batch, config["pooled_projection_dim"]),
    }


def _sdxl(config: Arguments, latent: Tensor, noise: Make) -> Arguments:
    batch = len(latent)
    pooled = config["projection_class_embeddings_input_dim"] - 6 * config["addition_time_embed_dim"]
    added = {"text_embeds": noise(batch, pooled), "time_ids": noise(batch, 6)}
    return {
        "encoder_hidden_states": noise(batch, 77, config["cross_attention_dim"]),
        "added_cond_kwargs": added,
    }


def _wan(config: Arguments, latent: Tensor, noise: Make) -> Arguments:
    text = 512 if latent.shape[-1] > 16 else 8
    return {"encoder_hidden_states": noise(1, text, config["text_dim"])}


def _qwen(config: Arguments, latent: Tensor, noise: Make) -> Arguments:
    tokens, text = latent.shape[1], 256 if latent.shape[1] > 64 else 8
    side = round(tokens**0.5)
    return {
        "encoder_hidden_states": noise(1, text, config["joint_attention_dim"]),
        "encoder_hidden_states_mask": torch.ones(1, text, dtype=torch.bool, device=latent.device),
        "img_shapes": [[(1, side, side)]],
    }


_SDXL = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
}
_TINY_WAN = {"num_attention_heads": 2, "attention_head_dim": 12, "num_layers": 3, "ffn_dim": 32, "text_dim": 16, "freq_dim": 16}  # fmt: skip
RECIPES: dict[str, Recipe] = {
    "flux": Recipe(
        "FluxTransformer2DModel",
        {"in_channels": 64, "num_layers": 19, "num_single_layers": 38, "attention_head_dim": 128, "num_attention_heads": 24,
         "joint_attention_dim": 4096, "pooled_projection_dim": 768, "guidance_embeds": True},
        {"num_layers": 3, "num_single_layers": 4, "attention_head_dim": 16, "num_attention_heads": 2,
         "joint_attention_dim": 32, "pooled_projection_dim": 16, "axes_dims_rope": (4, 6, 6)},
        (1, 4096, 64), (1, 64, 64), _flux, "transformer_blocks.1.ff.net.0.proj",
    ),
    "sd35": Recipe(
        "SD3Transformer2DModel",
        {"sample_size": 128, "num_layers": 38, "num_attention_heads": 38, "joint_attention_dim": 4096, "qk_norm": "rms_norm",
         "caption_projection_dim": 2432, "pooled_projection_dim": 2048, "pos_embed_max_size": 192},
        {"sample_size": 16, "num_layers": 4, "num_attention_heads": 2, "attention_head_dim": 16, "joint_attention_dim": 32,
         "caption_projection_dim": 32, "pooled_projection_dim": 16, "pos_embed_max_size": 16},
        (2, 16, 128, 128), (2, 16, 16, 16), _sd3, "transformer_blocks.1.ff.net.0.proj", time=1000.0,
    ),
    "sdxl": Recipe(
        "UNet2DConditionModel",
        {"sample_size": 128, "block_out_channels": (320, 640, 1280), "layers_per_block": 2, "cross_attention_dim": 2048,
         "transformer_layers_per_block": [1, 2, 10], "attention_head_dim": [5, 10, 20], "addition_time_embed_dim": 256,
         "projection_class_embeddings_input_dim": 2816, **_SDXL},
        {"sample_size": 16, "block_out_channels": (32, 64, 64), "transformer_layers_per_block": [1, 1, 2],
         "attention_head_dim": [2, 4, 4], "cross_attention_dim": 32, "addition_time_embed_dim": 16,
         "projection_class_embeddings_input_dim": 112},
        (2, 4, 128, 128), (2, 4, 16, 16), _sdxl, "mid_block.attentions.0.transformer_blocks.0.ff.net.0.proj", "sample", 1000.0,
    ),
    "wan1.3": Recipe(
        "WanTransformer3DModel", {"num_attention_heads": 12, "num_layers": 30, "ffn_dim": 8960, "text_dim": 4096}, _TINY_WAN,
        (1, 16, 21, 60, 104), (1, 16, 2, 8, 8), _wan, "blocks.1.ffn.net.0.proj", time=1000.0,
    ),
    "wan14": Recipe(
        "WanTransformer3DModel", {"num_attention_heads": 40, "num_layers": 40, "ffn_dim": 13824, "text_dim": 4096}, _TINY_WAN,
        (1, 16, 11, 60, 104), (1, 16, 2, 8, 8), _wan, "blocks.1.ffn.net.0.proj", time=1000.0,
    ),
    "qwen": Recipe(
        "QwenImageTransformer2DModel", {"num_layers": 60, "num_attention_heads": 24, "joint_attention_dim": 3584},
        {"num_layers": 3, "num_attention_heads": 2, "attention_head_dim": 16, "joint_attention_dim": 32,
         "axes_dims_rope": (4, 6, 6)},
        (1, 4096, 64), (1, 64, 64), _qwen, "transformer_blocks.1.img_mlp.net.0.proj",
    ),
}  # fmt: skip
"""FLUX.1 12B, SD3.5 large 8B and SDXL at 1024 x 1024 (the latter two with both guidance passes in a batch), Wan 2.1 1.3B and 14B
at 480p (81 and 41 frames), Qwen-Image 20B at 1024 x 1024."""


def build(name: str, device: str, dtype: torch.dtype, *, tiny: bool) -> RealModel:
    """Makes a denoiser of this name (see `RECIPES`) on a device; random weights, seeded."""
    torch.manual_seed(0)
    recipe = RECIPES[name]
    config = {**recipe.config, **(recipe.tiny if tiny else {})}

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # a 20B model in fp32 would not fit beside its copy in bf16
    try:
        with torch.device(device):
            net: nn.Module = getattr(diffusers, recipe.kind)(**config).eval()
    finally:
        torch.set_default_dtype(before)
    latent = noise(*(recipe.tiny_latent if tiny else recipe.latent))
    fixed = {**recipe.arguments(config, latent, noise), "return_dict": False}

    def call(x: Tensor, t: float) -> Arguments:
        time = torch.full([len(x)], recipe.time * t, device=device, dtype=dtype)
        return {recipe.latent_name: x, "timestep": time, **fixed}

    return RealModel(net, call, latent, net.get_submodule(recipe.middle))
