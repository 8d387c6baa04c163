"""Video transformers with one stream, outside the Wan family."""

from __future__ import annotations

import torch
from torch import Generator
from zoo.denoiser_case import Kwargs, case, like, randn, rotary, times
from zoo.shared_inputs import HEADS, TEXT, WIDTH, clip, mask
from zoo.video_dits import WIDE_HEADS, masked


def allegro(generator: Generator, batch: int) -> Kwargs:
    """Cosines and sines per axis, and the position of each token on each axis."""
    angles = torch.arange(2)[:, None] / 10.0 ** torch.arange(4)[None, :]
    axis = (angles.cos().repeat(1, 2), angles.sin().repeat(1, 2))
    places = torch.cartesian_prod(*[torch.arange(2)] * 3).T[:, None]
    pixels = torch.ones(batch, 2, 4, 4)
    return masked(generator, batch) | {
        "attention_mask": pixels,
        "image_rotary_emb": ((axis,) * 3, tuple(places)),
    }


def ltx(generator: Generator, batch: int) -> Kwargs:
    """Packed tokens; one time per token."""
    return clip(
        generator,
        batch,
        hidden_states=randn(generator, batch, 8, 4),
        timestep=torch.full((batch, 8), 1000.0),
        encoder_attention_mask=mask(batch, torch.long),
        num_frames=2,
        height=2,
        width=2,
    )


def cosmos(generator: Generator, batch: int) -> Kwargs:
    return clip(generator, batch, fps=24, padding_mask=torch.zeros(1, 1, 4, 4))


def cosmos_video(generator: Generator, batch: int) -> Kwargs:
    """Each frame has its own time; a mask marks the frames that are given."""
    given = torch.zeros(batch, 1, 2, 4, 4)
    return cosmos(generator, batch) | {
        "condition_mask": given,
        "timestep": torch.full((batch, 1, 2, 1, 1), 1000.0),
    }


def kandinsky5(generator: Generator, batch: int) -> Kwargs:
    """Channels last."""
    return clip(
        generator,
        batch,
        hidden_states=randn(generator, batch, 2, 4, 4, 4),
        return_dict=True,
        pooled_projections=randn(generator, batch, WIDTH),
        visual_rope_pos=[torch.arange(2), torch.arange(2), torch.arange(2)],
        text_rope_pos=torch.arange(TEXT),
    )


def kandinsky6_sr(generator: Generator, batch: int) -> Kwargs:
    """Channels last: latent, anchor and anchor mask; no text."""
    anchors = torch.zeros(batch, 1, 8, 8, 5)
    latent = torch.cat([randn(generator, batch, 1, 8, 8, 4), anchors], dim=-1)
    return {"hidden_states": latent, "timestep": times(batch, 1000.0), "return_dict": False}


def sana_wm(generator: Generator, batch: int) -> Kwargs:
    """One time per frame; a camera per frame: pose and focal lengths."""
    pose = torch.eye(4).flatten().expand(batch, 2, -1) + 0.1 * randn(generator, batch, 2, 16)
    lens = torch.tensor([4.0, 4.0, 2.0, 2.0]).expand(batch, 2, -1)
    return clip(
        generator,
        batch,
        timestep=torch.full((batch, 1, 2), 1000.0),
        encoder_hidden_states=randn(generator, batch, 1, TEXT, WIDTH),
        mask=mask(batch, torch.long),
        camera_conditions=torch.cat([pose, lens], dim=-1),
        chunk_plucker=randn(generator, batch, 6, 2, 4, 4),
    )


def sana_wm_refiner(generator: Generator, batch: int) -> Kwargs:
    """A block of frames whose keys and values follow those of a sink and of a history."""
    from diffusers.models.transformers.transformer_sana_wm_refiner import SanaWMRefinerKVCache

    cache = SanaWMRefinerKVCache(4)
    for layer in cache.layer_caches:
        layer.sink_k_pre, layer.sink_v = randn(generator, batch, 4, 16), randn(generator, batch, 4, 16)
        layer.history_k, layer.history_v = randn(generator, batch, 4, 16), randn(generator, batch, 4, 16)
    rope, cache.sink_pe = (like(rotary(tokens, 16), lambda x: x.expand(batch, -1, -1)) for tokens in (8, 4))
    return clip(
        generator,
        batch,
        hidden_states=randn(generator, batch, 8, 4),
        timestep=torch.full((batch, 8), 1000.0),
        video_rotary_emb=rope,
        kv_cache=cache,
        kv_cache_mode="inject",
    )


COSMOS: Kwargs = {
    **WIDE_HEADS,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 4,
    "mlp_ratio": 2.0,
    "text_embed_dim": WIDTH,
    "adaln_lora_dim": 4,
    "max_size": (4, 8, 8),
}

CASES = [
    case(
        "AllegroTransformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 24,
            "num_layers": 4,
            "cross_attention_dim": 48,
            "sample_height": 4,
            "sample_width": 4,
            "sample_frames": 5,
            "caption_channels": WIDTH,
        },
        allegro,
        notes="single stream with cross-attention",
    ),
    case(
        "LatteTransformer3DModel",
        {
            **HEADS,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 4,
            "cross_attention_dim": 16,
            "patch_size": 2,
            "sample_size": 4,
            "caption_channels": WIDTH,
            "video_length": 2,
            "norm_type": "ada_norm_single",
            "num_embeds_ada_norm": 1000,
            "norm_elementwise_affine": False,
            "attention_bias": True,
            "activation_fn": "gelu-approximate",
        },
        clip,
        notes="blocks of two lists by turns, with a change of layout between; learned sigma",
    ),
    case(
        "LTXVideoTransformer3DModel",
        {
            **HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 4,
            "cross_attention_dim": 16,
            "caption_channels": WIDTH,
        },
        ltx,
        notes="packed tokens; one time per token",
    ),
    case("CosmosTransformer3DModel", COSMOS, cosmos, notes="single stream with cross-attention"),
    case(
        "CosmosTransformer3DModel",
        {**COSMOS, "in_channels": 5, "extra_pos_embed_type": None},
        cosmos_video,
        variant="video",
        notes="one time per frame",
    ),
    case(
        "Kandinsky5Transformer3DModel",
        {
            "in_visual_dim": 4,
            "in_text_dim": WIDTH,
            "in_text_dim2": WIDTH,
            "time_dim": 16,
            "out_visual_dim": 4,
            "model_dim": 32,
            "ff_dim": 32,
            "num_text_blocks": 3,
            "num_visual_blocks": 4,
            "axes_dims": (4, 6, 6),
        },
        kandinsky5,
        notes="channels last; text blocks depend on the time; without return_dict it returns a bare tensor",
    ),
    case(
        "Kandinsky6SRTransformer3DModel",
        {
            "in_visual_dim": 4,
            "out_visual_dim": 4,
            "time_dim": 16,
            "model_dim": 32,
            "ff_dim": 32,
            "num_visual_blocks": 4,
            "axes_dims": (4, 6, 6),
            "scale_factor": (1.0, 1.0, 1.0),
        },
        kandinsky6_sr,
        text=(),
        notes="channels last; sparse attention; no text",
    ),
    case(
        "SanaVideoTransformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 4,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 12,
            "cross_attention_dim": 24,
            "caption_channels": WIDTH,
            "sample_size": 4,
            "rope_max_seq_len": 32,
        },
        masked,
        notes="linear attention; feed-forward is a convolution over frames",
    ),
    case(
        "SanaWMTransformer3DModel",
        {
            "in_channels": 4,
            "num_layers": 4,
            "hidden_size": 48,
            "num_attention_heads": 2,
            "softmax_every_n": 2,
            "linear_head_dim": 24,
            "chunk_plucker_channels": 6,
            "chunk_plucker_post_attn_blocks": 4,
            "image_size": 4,
            "caption_channels": WIDTH,
        },
        sana_wm,
        notes="single stream; recurrent attention; one time per frame; camera branch in each block",
    ),
    case(
        "SanaWMLTX2RefinerTransformer3DModel",
        {
            **HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "cross_attention_dim": 16,
            "num_layers": 4,
            "audio_in_channels": 4,
            "audio_out_channels": 4,
            "audio_num_attention_heads": 2,
            "audio_attention_head_dim": 4,
            "audio_cross_attention_dim": 8,
            "caption_channels": WIDTH,
            "rope_double_precision": False,
        },
        sana_wm_refiner,
        notes="reads a key/value cache that other calls of the same module write",
    ),
]
