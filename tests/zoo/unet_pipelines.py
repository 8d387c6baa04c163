"""Tiny pipelines whose denoiser is a UNet."""

from __future__ import annotations

from typing import Any

from diffusers import (
    AnimateDiffPipeline,
    DDPMPipeline,
    DDPMScheduler,
    DDPMWuerstchenScheduler,
    KandinskyV22Pipeline,
    LatentConsistencyModelPipeline,
    LCMScheduler,
    MotionAdapter,
    StableCascadePriorPipeline,
    StableDiffusionAdapterPipeline,
    StableDiffusionControlNetPipeline,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    T2IAdapter,
    VQModel,
)
from transformers import CLIPTextConfig, CLIPTextModelWithProjection
from zoo import denoisers
from zoo.image_pipelines import BOTH_POOLED, ONE_TEXT, PROMPT, PROMPTS, SMALL, TWO_TEXTS
from zoo.pipeline_case import PipelineCase, calling, ddim, kl_vae, model, noise, picture, quiet
from zoo.weights import tiny

UNET = ("unet",)
NO_CHECKER = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}


def sd(
    cls: type = StableDiffusionPipeline,
    unet: str = "UNet2DConditionModel",
    scheduler: Any = ddim,
    **more: Any,
) -> Any:
    return quiet(cls(vae=kl_vae(), unet=model(unet), scheduler=scheduler(), **ONE_TEXT, **NO_CHECKER, **more))


def controlnet() -> Any:
    return sd(StableDiffusionControlNetPipeline, controlnet=denoisers.REFUSED["ControlNetModel"].build())


def t2i_adapter() -> Any:
    adapter = tiny(
        T2IAdapter,
        in_channels=3,
        channels=[8, 16],
        num_res_blocks=1,
        downscale_factor=2,
        adapter_type="full_adapter",
    )
    return sd(StableDiffusionAdapterPipeline, adapter=adapter)


def sdxl() -> Any:
    unet = model("UNet2DConditionModel-sdxl")
    return quiet(StableDiffusionXLPipeline(vae=kl_vae(), unet=unet, scheduler=ddim(), **TWO_TEXTS))


def ddpm() -> Any:
    return quiet(DDPMPipeline(model("UNet2DModel"), DDPMScheduler()))


def kandinsky22() -> Any:
    movq = tiny(
        VQModel,
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
        up_block_types=("AttnUpDecoderBlock2D", "UpDecoderBlock2D"),
        latent_channels=4,
        num_vq_embeddings=8,
        vq_embed_dim=4,
        norm_num_groups=4,
    )
    return quiet(KandinskyV22Pipeline(model("UNet2DConditionModel-kandinsky2"), ddim(), movq))


def animate_diff() -> Any:
    adapter = tiny(
        MotionAdapter,
        block_out_channels=(8, 16, 16),
        motion_layers_per_block=2,
        motion_norm_num_groups=4,
        motion_num_attention_heads=2,
        motion_max_seq_length=4,
    )
    unet = model("UNet2DConditionModel")
    return quiet(
        AnimateDiffPipeline(vae=kl_vae(), unet=unet, motion_adapter=adapter, scheduler=ddim(), **ONE_TEXT)
    )


def cascade() -> Any:
    prior = model("StableCascadeUNet")
    sizes = {"hidden_size": 16, "projection_dim": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = CLIPTextConfig(num_hidden_layers=1, vocab_size=8, max_position_embeddings=8, **sizes)
    text_encoder = tiny(CLIPTextModelWithProjection, config=config)  # only its dtype is read
    return quiet(
        StableCascadePriorPipeline(
            prior=prior,
            tokenizer=None,
            text_encoder=text_encoder,
            scheduler=DDPMWuerstchenScheduler(),
            resolution_multiple=2.0,
        )
    )


PICTURE = picture(1, 3, 16, 16)
CASES = [
    PipelineCase("StableDiffusionPipeline", sd, calling(**PROMPTS, **SMALL), "batched", UNET),
    PipelineCase(
        "StableDiffusionPipeline-unguided", sd, calling(**PROMPT, guidance_scale=1.0, **SMALL), "none", UNET
    ),
    PipelineCase(
        "StableDiffusionImg2ImgPipeline",
        lambda: sd(StableDiffusionImg2ImgPipeline),
        calling(image=PICTURE, strength=0.7, output_type="latent", **PROMPTS),
        "batched",
        UNET,
    ),
    PipelineCase(
        "StableDiffusionInpaintPipeline",
        lambda: sd(StableDiffusionInpaintPipeline, "UNet2DConditionModel-inpaint"),
        calling(image=PICTURE, mask_image=picture(1, 1, 16, 16), **PROMPTS, **SMALL),
        "batched",
        UNET,
    ),
    PipelineCase(
        "StableDiffusionControlNetPipeline",
        controlnet,
        calling(image=PICTURE, **PROMPTS, **SMALL),
        "batched",
        UNET,
        notes="the residuals are new tensors at each step",
    ),
    PipelineCase(
        "StableDiffusionAdapterPipeline",
        t2i_adapter,
        calling(image=PICTURE, **PROMPTS, **SMALL),
        "batched",
        UNET,
        notes="the UNet takes the adapter's residuals out of a list",
    ),
    PipelineCase(
        "LatentConsistencyModelPipeline",
        lambda: sd(LatentConsistencyModelPipeline, "UNet2DConditionModel-lcm", LCMScheduler),
        calling(**PROMPT, **SMALL),
        "none",
        UNET,
    ),
    PipelineCase(
        "StableDiffusionXLPipeline", sdxl, calling(**PROMPTS, **BOTH_POOLED, **SMALL), "batched", UNET
    ),
    PipelineCase("DDPMPipeline", ddpm, calling(output_type="np"), "none", UNET, notes="no num_timesteps"),
    PipelineCase(
        "KandinskyV22Pipeline",
        kandinsky22,
        calling(image_embeds=noise(1, 16, seed=1), negative_image_embeds=noise(1, 16, seed=2), **SMALL),
        "batched",
        UNET,
    ),
    PipelineCase(
        "StableCascadePriorPipeline",
        cascade,
        calling(
            **PROMPTS,
            prompt_embeds_pooled=noise(1, 1, 16, seed=3),
            negative_prompt_embeds_pooled=noise(1, 1, 16, seed=4),
            height=16,
            width=16,
            output_type="pt",
        ),
        "batched",
        ("prior",),
    ),
    PipelineCase(
        "AnimateDiffPipeline",
        animate_diff,
        calling(**PROMPTS, **SMALL, num_frames=2),
        "batched",
        UNET,
    ),
]
