"""Tiny video pipelines."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLCogVideoX,
    AutoencoderKLHunyuanVideo15,
    AutoencoderKLMochi,
    CogVideoXDDIMScheduler,
    CogVideoXPipeline,
    HunyuanVideo15Pipeline,
    HunyuanVideoPipeline,
    Kandinsky5T2VPipeline,
    LattePipeline,
    MochiPipeline,
    SkyReelsV2DiffusionForcingPipeline,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanVACEPipeline,
)
from diffusers.guiders import ClassifierFreeGuidance
from zoo import ltx_pipelines
from zoo.image_pipelines import (
    BOTH_POOLED,
    EVERY_TOKEN,
    MASKS,
    MOST_TOKENS,
    ONE_TEXT,
    POOLED,
    PROMPTS,
    TWO_TEXTS,
)
from zoo.pipeline_case import (
    CLIP,
    PipelineCase,
    calling,
    ddim,
    flow,
    hunyuan_vae,
    kl_vae,
    model,
    noise,
    picture,
    quiet,
    wan_vae,
)
from zoo.weights import tiny


def unipc() -> UniPCMultistepScheduler:
    return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)


def wan(
    cls: type = WanPipeline, denoiser: str = "WanTransformer3DModel", *, experts: int = 1, **config: Any
) -> Any:
    components = {"image_encoder": None, "image_processor": None} if cls is WanImageToVideoPipeline else {}
    return quiet(
        cls(
            vae=wan_vae(),
            scheduler=unipc(),
            transformer=model(denoiser, **config),
            transformer_2=model(denoiser, seed=1, **config) if experts == 2 else None,
            boundary_ratio=0.875 if experts == 2 else None,
            **ONE_TEXT,
            **components,
        )
    )


def sky_reels() -> Any:
    transformer = model("SkyReelsV2Transformer3DModel")
    return quiet(
        SkyReelsV2DiffusionForcingPipeline(
            transformer=transformer, vae=wan_vae(), scheduler=unipc(), **ONE_TEXT
        )
    )


def cogvideox() -> Any:
    vae = tiny(
        AutoencoderKLCogVideoX,
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        norm_num_groups=2,
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
    )
    transformer = model("CogVideoXTransformer3DModel")
    return quiet(
        CogVideoXPipeline(vae=vae, transformer=transformer, scheduler=CogVideoXDDIMScheduler(), **ONE_TEXT)
    )


def hunyuan() -> Any:
    transformer = model("HunyuanVideoTransformer3DModel")
    return quiet(
        HunyuanVideoPipeline(transformer=transformer, vae=hunyuan_vae(), scheduler=flow(), **TWO_TEXTS)
    )


def hunyuan15() -> Any:
    vae = tiny(
        AutoencoderKLHunyuanVideo15,
        latent_channels=4,
        block_out_channels=(8, 8),
        layers_per_block=1,
        spatial_compression_ratio=2,
        temporal_compression_ratio=2,
        downsample_match_channel=False,
        upsample_match_channel=False,
    )
    transformer = model("HunyuanVideo15Transformer3DModel")
    guider = ClassifierFreeGuidance(guidance_scale=3.0)
    return quiet(
        HunyuanVideo15Pipeline(transformer=transformer, vae=vae, scheduler=flow(), guider=guider, **TWO_TEXTS)
    )


def mochi() -> Any:
    vae = tiny(
        AutoencoderKLMochi,
        latent_channels=4,
        encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1),
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    transformer = model("MochiTransformer3DModel")
    return quiet(MochiPipeline(flow(invert_sigmas=True), vae, transformer=transformer, **ONE_TEXT))


def latte() -> Any:
    return quiet(
        LattePipeline(
            vae=kl_vae(), transformer=model("LatteTransformer3DModel"), scheduler=ddim(), **ONE_TEXT
        )
    )


def kandinsky5() -> Any:
    transformer = model("Kandinsky5Transformer3DModel")
    return quiet(
        Kandinsky5T2VPipeline(transformer=transformer, vae=hunyuan_vae(), scheduler=flow(), **TWO_TEXTS)
    )


CASES = [
    PipelineCase("WanPipeline", wan, calling(**PROMPTS, **CLIP), "two-pass"),
    PipelineCase(
        "WanPipeline-two-experts",
        lambda: wan(experts=2),
        calling(**PROMPTS, **CLIP),
        "two-pass",
        denoisers=("transformer", "transformer_2"),
        notes="the first denoiser makes the early steps, the second the late ones",
    ),
    PipelineCase(
        "WanImageToVideoPipeline",
        lambda: wan(WanImageToVideoPipeline, in_channels=36),
        calling(image=picture(1, 3, 16, 16), **PROMPTS, **CLIP),
        "two-pass",
    ),
    PipelineCase(
        "WanVACEPipeline",
        lambda: wan(WanVACEPipeline, "WanVACETransformer3DModel", vace_in_channels=96),
        calling(**PROMPTS, **CLIP),
        "two-pass",
    ),
    PipelineCase(
        "SkyReelsV2DiffusionForcingPipeline",
        sky_reels,
        calling(prompt=None, **PROMPTS, **CLIP, base_num_frames=5),
        "two-pass",
        notes="steps copies of its noise scheduler, one per frame, never the one it owns",
    ),
    *ltx_pipelines.CASES,
    PipelineCase(
        "CogVideoXPipeline", cogvideox, calling(**PROMPTS, **{**CLIP, "height": 32, "width": 32}), "batched"
    ),
    PipelineCase(
        "HunyuanVideoPipeline",
        hunyuan,
        calling(prompt_embeds=PROMPTS["prompt_embeds"], prompt_attention_mask=EVERY_TOKEN, **POOLED, **CLIP),
        "none",
    ),
    PipelineCase(
        "HunyuanVideoPipeline-true-cfg",
        hunyuan,
        calling(**PROMPTS, **MASKS, **BOTH_POOLED, true_cfg_scale=3.0, **CLIP),
        "two-pass",
    ),
    PipelineCase(
        "HunyuanVideo15Pipeline",
        hunyuan15,
        calling(
            **PROMPTS,
            prompt_embeds_mask=EVERY_TOKEN,
            negative_prompt_embeds_mask=MOST_TOKENS,
            prompt_embeds_2=noise(1, 4, 16, seed=5),
            prompt_embeds_mask_2=EVERY_TOKEN[:, :4],
            negative_prompt_embeds_2=noise(1, 4, 16, seed=6),
            negative_prompt_embeds_mask_2=EVERY_TOKEN[:, :4],
            **CLIP,
        ),
        "two-pass",
        notes="a guider names the branches pred_cond and pred_uncond",
    ),
    PipelineCase("MochiPipeline", mochi, calling(**PROMPTS, **MASKS, **{**CLIP, "num_frames": 7}), "batched"),
    PipelineCase(
        "LattePipeline",
        latte,
        calling(
            **PROMPTS,
            negative_prompt=None,
            height=8,
            width=8,
            video_length=2,
            output_type="latent",
            mask_feature=False,
        ),
        "batched",
    ),
    PipelineCase(
        "Kandinsky5T2VPipeline",
        kandinsky5,
        calling(
            prompt_embeds_qwen=noise(1, 6, 16, seed=1),
            prompt_embeds_clip=noise(1, 16, seed=2),
            negative_prompt_embeds_qwen=noise(1, 6, 16, seed=3),
            negative_prompt_embeds_clip=noise(1, 16, seed=4),
            prompt_cu_seqlens=torch.tensor([0, 6], dtype=torch.int32),
            negative_prompt_cu_seqlens=torch.tensor([0, 6], dtype=torch.int32),
            **CLIP,
        ),
        "two-pass",
        notes="writes each step into the same latent tensor; no cache_context",
    ),
]
