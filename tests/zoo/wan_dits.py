"""Video transformers of the Wan family."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor
from zoo.denoiser_case import Kwargs, case, randn, times
from zoo.shared_inputs import TEXT, WIDTH, clip

CHANNELS = 16
WAN: Kwargs = {
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": CHANNELS,
    "out_channels": CHANNELS,
    "text_dim": WIDTH,
    "freq_dim": 16,
    "ffn_dim": 32,
    "num_layers": 4,
    "rope_max_seq_len": 32,
}
IMAGE: Kwargs = {"in_channels": 36, "image_dim": WIDTH, "added_kv_proj_dim": 24}


def wan_clip(generator: Generator, batch: int, channels: int = CHANNELS, **more: Any) -> Kwargs:
    """A latent clip of 4 x 4 pixels beside six tokens of text."""
    return clip(generator, batch, channels, **more)


def image_to_video(generator: Generator, batch: int) -> Kwargs:
    """Latent, mask and picture are one argument of 16 + 4 + 16 channels."""
    return wan_clip(generator, batch, 36, encoder_hidden_states_image=randn(generator, batch, 4, WIDTH))


def per_token(generator: Generator, batch: int) -> Kwargs:
    return wan_clip(generator, batch, timestep=torch.full((batch, 8), 1000.0))


def vace(generator: Generator, batch: int) -> Kwargs:
    control = randn(generator, batch, 24, 2, 4, 4)
    return wan_clip(
        generator, batch, control_hidden_states=control, control_hidden_states_scale=torch.tensor([1.0, 0.5])
    )


def animate(generator: Generator, batch: int) -> Kwargs:
    return wan_clip(
        generator,
        batch,
        36,
        frames=3,
        encoder_hidden_states_image=randn(generator, batch, 4, WIDTH),
        pose_hidden_states=randn(generator, batch, CHANNELS, 2, 4, 4),
        face_pixel_values=randn(generator, batch, 3, 8, 8, 8),
    )


def animate2(generator: Generator, batch: int) -> Kwargs:
    """Lists of samples, and key/value caches that a call before the loop has filled from a reference clip."""
    from diffusers.models.transformers.transformer_wan_animate_2 import WanAnimate2KVCache

    cache = WanAnimate2KVCache(4)
    for layer in cache.layer_caches:
        layer.store(randn(generator, 1, 8, 2, 16), randn(generator, 1, 8, 2, 16))
    return {
        "hidden_states": [randn(generator, CHANNELS, 2, 4, 4)],
        "timestep": times(1, 1000.0),
        "encoder_hidden_states": [randn(generator, TEXT, WIDTH)],
        "condition_latents": [randn(generator, 20, 2, 4, 4)],
        "kv_cache": cache,
        "kv_cache_mode": "cached",
        "seq_len": 8,
        "encoder_hidden_states_image": randn(generator, 1, 4, 1280),
        "reference_grid_sizes": torch.tensor([[2, 2, 2]]),
        "origin_len": 5,
        "origin_area": [32, 32],
        "return_dict": False,
    }


def diffusion_forcing(generator: Generator, batch: int) -> Kwargs:
    """Each frame has its own time."""
    time = torch.full((batch, 2), 1000.0)
    return wan_clip(generator, batch, timestep=time, enable_diffusion_forcing=True)


def any_flow(generator: Generator, batch: int) -> Kwargs:
    """Frames before channels; time and target time per frame."""
    video = randn(generator, batch, 2, CHANNELS, 4, 4)
    time = torch.full((batch, 2), 1000.0)
    return wan_clip(
        generator, batch, hidden_states=video, timestep=time, r_timestep=torch.full((batch, 2), 800.0)
    )


def any_flow_far(generator: Generator, batch: int) -> Kwargs:
    """The third chunk of a clip; the key/value cache holds the two before it."""

    def cache() -> dict[str, Tensor]:
        return {
            "full_cache": randn(generator, 2, batch, 2, 16, 16),
            "compressed_cache": randn(generator, 2, batch, 2, 2, 16),
        }

    return any_flow(generator, batch) | {
        "chunk_partition": [1, 1, 2],
        "kv_cache": {layer: cache() for layer in range(4)},
        "kv_cache_flag": {"num_cached_chunks": 2, "is_cache_step": False},
    }


def sample_only(value: Any) -> list[Tensor]:
    return [value[0]]


def helios(generator: Generator, batch: int) -> Kwargs:
    """The latent chunk follows three histories of growing coarseness."""
    return wan_clip(
        generator,
        batch,
        indices_hidden_states=torch.arange(7, 9).expand(batch, -1),
        indices_latents_history_short=torch.arange(6, 7).expand(batch, -1),
        indices_latents_history_mid=torch.arange(4, 6).expand(batch, -1),
        indices_latents_history_long=torch.arange(0, 4).expand(batch, -1),
        latents_history_short=randn(generator, batch, CHANNELS, 1, 4, 4),
        latents_history_mid=randn(generator, batch, CHANNELS, 2, 4, 4),
        latents_history_long=randn(generator, batch, CHANNELS, 4, 4, 4),
    )


ANY_FLOW: Kwargs = {**WAN, "attention_head_dim": 16}

CASES = [
    case("WanTransformer3DModel", WAN, wan_clip, notes="single stream with cross-attention"),
    case(
        "WanTransformer3DModel",
        {**WAN, **IMAGE},
        image_to_video,
        variant="i2v",
        notes="36 channels in, 16 out",
    ),
    case("WanTransformer3DModel", WAN, per_token, variant="ti2v", notes="one time per token"),
    case(
        "WanVACETransformer3DModel",
        {**WAN, "vace_layers": [0, 2], "vace_in_channels": 24},
        vace,
        notes="control blocks of their own list add residuals between the main blocks",
    ),
    case(
        "WanAnimateTransformer3DModel",
        {
            **WAN,
            **IMAGE,
            "latent_channels": CHANNELS,
            "motion_encoder_channel_sizes": {"4": 4, "8": 4},
            "motion_encoder_size": 8,
            "motion_style_dim": 8,
            "motion_dim": 4,
            "motion_encoder_dim": 8,
            "face_encoder_hidden_dim": 8,
            "face_encoder_num_heads": 2,
            "inject_face_latents_blocks": 2,
        },
        animate,
        notes="36 channels in, 16 out; a face adapter's output is added after every second block",
    ),
    case(
        "WanAnimate2Transformer3DModel",
        {
            "text_len": TEXT,
            "in_dim": 36,
            "dim": 32,
            "ffn_dim": 32,
            "freq_dim": 16,
            "text_dim": WIDTH,
            "out_dim": CHANNELS,
            "num_heads": 2,
            "num_layers": 4,
        },
        animate2,
        notes="lists; reads a key/value cache; keeps masks on the instance; one block is skipped without text",
    ),
    case("ChronoEditTransformer3DModel", {**WAN, **IMAGE}, image_to_video, notes="36 channels in, 16 out"),
    case("SkyReelsV2Transformer3DModel", WAN, wan_clip, notes="single stream with cross-attention"),
    case(
        "SkyReelsV2Transformer3DModel",
        {**WAN, "num_frame_per_block": 2},
        diffusion_forcing,
        variant="forcing",
        notes="one time per frame; causal mask",
    ),
    case(
        "AnyFlowTransformer3DModel",
        ANY_FLOW,
        any_flow,
        next_time="r_timestep",
        notes="frames first; two times per frame",
    ),
    case(
        "AnyFlowFARTransformer3DModel",
        {**ANY_FLOW, "chunk_partition": (1, 1, 2), "full_chunk_limit": 3},
        any_flow_far,
        next_time="r_timestep",
        output=sample_only,
        notes="frames first; reads a key/value cache that other calls write; returns it beside the sample",
    ),
    case(
        "HeliosTransformer3DModel",
        {**{key: value for key, value in WAN.items() if key != "rope_max_seq_len"}, "rope_dim": (4, 4, 4)},
        helios,
        notes="history tokens before the latent's, at time 0; cut before the output",
    ),
]
