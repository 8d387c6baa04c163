"""Tiny pipelines with an encoder that must be there, several loops in one call, or sound."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLFlux2,
    AutoencoderKLTemporalDecoder,
    AutoencoderOobleck,
    EDMDPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    Flux2KleinPipeline,
    HunyuanVideoFramepackPipeline,
    StableAudioPipeline,
    StableVideoDiffusionPipeline,
)
from diffusers.pipelines.stable_audio import StableAudioProjectionModel
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    SiglipImageProcessor,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from zoo.image_pipelines import EVERY_TOKEN, ONE_TEXT, POOLED, PROMPT, PROMPTS, SMALL, TWO_TEXTS
from zoo.pipeline_case import CLIP, PipelineCase, calling, flow, hunyuan_vae, model, picture, quiet
from zoo.video_pipelines import sky_reels
from zoo.weights import tiny

VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}


def svd() -> Any:
    vae = tiny(
        AutoencoderKLTemporalDecoder,
        block_out_channels=(32, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        latent_channels=4,
    )
    encoder = tiny(CLIPVisionModelWithProjection, config=CLIPVisionConfig(projection_dim=16, **VISION))
    crop = {"height": 32, "width": 32}
    extractor = CLIPImageProcessor(crop_size=crop, size={"shortest_edge": 32})
    noise_scheduler = EulerDiscreteScheduler(
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        use_karras_sigmas=True,
        sigma_min=0.002,
        sigma_max=700.0,
        timestep_type="continuous",
        timestep_spacing="leading",
    )
    unet = model("UNetSpatioTemporalConditionModel")
    return quiet(StableVideoDiffusionPipeline(vae, encoder, unet, noise_scheduler, extractor))


def framepack() -> Any:
    return quiet(
        HunyuanVideoFramepackPipeline(
            transformer=model("HunyuanVideoFramepackTransformer3DModel"),
            vae=hunyuan_vae(),
            scheduler=flow(),
            image_encoder=tiny(SiglipVisionModel, config=SiglipVisionConfig(**VISION)),
            feature_extractor=SiglipImageProcessor(size={"height": 32, "width": 32}),
            **TWO_TEXTS,
        )
    )


def flux2() -> Any:
    vae = tiny(
        AutoencoderKLFlux2,
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=4,
    )
    return quiet(
        Flux2KleinPipeline(
            flow(), vae, transformer=model("Flux2Transformer2DModel", guidance_embeds=False), **ONE_TEXT
        )
    )


def stable_audio() -> Any:
    vae = tiny(
        AutoencoderOobleck,
        encoder_hidden_size=4,
        downsampling_ratios=[2, 2],
        channel_multiples=[1, 2],
        decoder_channels=4,
        decoder_input_channels=4,
        sampling_rate=16,
    )
    projection = tiny(
        StableAudioProjectionModel, text_encoder_dim=16, conditioning_dim=16, min_value=0, max_value=4
    )
    return quiet(
        StableAudioPipeline(
            vae=vae,
            projection_model=projection,
            transformer=model("StableAudioDiTModel", global_states_input_dim=32),
            scheduler=EDMDPMSolverMultistepScheduler(sigma_data=1.0, prediction_type="v_prediction"),
            **ONE_TEXT,
        )
    )


CASES = [
    PipelineCase(
        "StableVideoDiffusionPipeline",
        svd,
        calling(image=picture(1, 3, 32, 32), height=32, width=32, num_frames=2, output_type="latent"),
        "batched",
        ("unet",),
    ),
    PipelineCase(
        "HunyuanVideoFramepackPipeline-two-loops",
        framepack,
        calling(
            **PROMPT,
            **POOLED,
            image=picture(1, 3, 64, 64),
            prompt_attention_mask=EVERY_TOKEN,
            height=64,
            width=64,
            latent_window_size=2,
            num_frames=10,
            output_type="latent",
        ),
        "none",
        image=lambda output: torch.cat(list(output[0]), dim=2),
        notes="one loop per section of the clip; each starts the noise scheduler anew",
    ),
    PipelineCase(
        "SkyReelsV2DiffusionForcingPipeline-two-loops",
        sky_reels,
        calling(prompt=None, **PROMPTS, **{**CLIP, "num_frames": 13}, base_num_frames=9, overlap_history=5),
        "two-pass",
        notes="one loop per section of the clip, on copies of its noise scheduler",
    ),
    PipelineCase("Flux2KleinPipeline", flux2, calling(**PROMPTS, **SMALL), "two-pass"),
    PipelineCase(
        "StableAudioPipeline",
        stable_audio,
        calling(
            **PROMPTS,
            attention_mask=EVERY_TOKEN,
            negative_attention_mask=EVERY_TOKEN,
            audio_end_in_s=2.0,
            output_type="latent",
        ),
        "batched",
    ),
]
