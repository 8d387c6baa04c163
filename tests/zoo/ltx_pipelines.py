"""Tiny pipelines of the LTX family."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLLTX2Audio,
    AutoencoderKLLTX2Video,
    AutoencoderKLLTXVideo,
    LTX2Pipeline,
    LTXPipeline,
)
from diffusers.pipelines.ltx2 import LTX2TextConnectors
from zoo.image_pipelines import MASKS, ONE_TEXT, PROMPTS
from zoo.pipeline_case import CLIP, PipelineCase, calling, flow, model, noise, quiet
from zoo.weights import tiny


def ltx2() -> Any:
    vae = tiny(
        AutoencoderKLLTX2Video,
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        patch_size=2,
    )
    audio_vae = tiny(
        AutoencoderKLLTX2Audio,
        base_channels=8,
        ch_mult=(1,),
        num_res_blocks=1,
        latent_channels=2,
        mel_bins=16,
    )
    connectors = tiny(
        LTX2TextConnectors,
        caption_channels=16,
        text_proj_in_factor=2,
        video_connector_num_layers=1,
        video_connector_num_attention_heads=2,
        video_connector_attention_head_dim=8,
        video_connector_num_learnable_registers=2,
        audio_connector_num_layers=1,
        audio_connector_num_attention_heads=2,
        audio_connector_attention_head_dim=8,
        audio_connector_num_learnable_registers=2,
        connector_rope_base_seq_len=8,
        rope_double_precision=False,
    )
    return quiet(
        LTX2Pipeline(
            scheduler=flow(),
            vae=vae,
            audio_vae=audio_vae,
            connectors=connectors,
            transformer=model("LTX2VideoTransformer3DModel"),
            vocoder=None,
            **ONE_TEXT,
        )
    )


def ltx() -> Any:
    vae = tiny(
        AutoencoderKLLTXVideo,
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        patch_size=1,
    )
    return quiet(LTXPipeline(flow(), vae, transformer=model("LTXVideoTransformer3DModel"), **ONE_TEXT))


LTX2_CALL = {
    "prompt_embeds": noise(1, 4, 32, seed=1),
    "prompt_attention_mask": torch.ones(1, 4, dtype=torch.bool),
    "negative_prompt_embeds": noise(1, 4, 32, seed=2),
    "negative_prompt_attention_mask": torch.ones(1, 4, dtype=torch.bool),
    "height": 64,
    "width": 64,
    "num_frames": 9,
    "stg_scale": 0.0,
    "modality_scale": 1.0,
    "audio_stg_scale": 0.0,
    "audio_modality_scale": 1.0,
    "output_type": "latent",
}
ALL_GUIDANCE = {"stg_scale": 1.0, "modality_scale": 3.0, "spatio_temporal_guidance_blocks": [1]}

CASES = [
    PipelineCase(
        "LTX2Pipeline",
        ltx2,
        calling(**LTX2_CALL),
        "batched",
        notes="steps a copy of its noise scheduler for the audio",
    ),
    PipelineCase(
        "LTX2Pipeline-three-passes",
        ltx2,
        calling(**{**LTX2_CALL, **ALL_GUIDANCE}),
        "batched",
        notes="a call with two branches in its batch, then two calls with one branch each",
    ),
    PipelineCase(
        "LTXPipeline",
        ltx,
        calling(**PROMPTS, **MASKS, **{**CLIP, "height": 64, "width": 64, "num_frames": 9}),
        "batched",
    ),
]
