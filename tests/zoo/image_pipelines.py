"""Tiny text-to-image pipelines whose denoiser is a transformer."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AuraFlowPipeline,
    AutoencoderDC,
    AutoencoderKLQwenImage,
    ChromaPipeline,
    CogView4Pipeline,
    DiTPipeline,
    FluxImg2ImgPipeline,
    FluxInpaintPipeline,
    FluxKontextPipeline,
    FluxPipeline,
    HiDreamImagePipeline,
    HunyuanDiTPipeline,
    Lumina2Pipeline,
    PixArtAlphaPipeline,
    PixArtSigmaPipeline,
    QwenImagePipeline,
    SanaPipeline,
    StableDiffusion3Pipeline,
    ZImagePipeline,
)
from zoo.pipeline_case import (
    PipelineCase,
    absent,
    calling,
    ddim,
    flow,
    kl_vae,
    model,
    noise,
    picture,
    quiet,
    wan_vae,
)
from zoo.weights import tiny

ONE_TEXT = absent("text_encoder", "tokenizer")
TWO_TEXTS = absent("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
SMALL = {"height": 16, "width": 16, "output_type": "latent"}
EVERY_TOKEN = torch.ones(1, 6, dtype=torch.long)
MOST_TOKENS = torch.tensor([[1, 1, 1, 1, 0, 0]])
PROMPT = {"prompt_embeds": noise(1, 6, 16, seed=1)}
PROMPTS = {**PROMPT, "negative_prompt_embeds": noise(1, 6, 16, seed=3)}
MASKS = {"prompt_attention_mask": EVERY_TOKEN, "negative_prompt_attention_mask": MOST_TOKENS}
POOLED = {"pooled_prompt_embeds": noise(1, 16, seed=2)}
BOTH_POOLED = {**POOLED, "negative_pooled_prompt_embeds": noise(1, 16, seed=4)}


def dit() -> Any:
    return quiet(DiTPipeline(model("DiTTransformer2DModel"), kl_vae(), ddim()))


def flux(cls: type = FluxPipeline) -> Any:
    vae = kl_vae(shift_factor=0.1)
    return quiet(cls(flow(), vae, transformer=model("FluxTransformer2DModel"), **TWO_TEXTS))


def sd3() -> Any:
    texts = TWO_TEXTS | absent("text_encoder_3", "tokenizer_3")
    return quiet(StableDiffusion3Pipeline(model("SD3Transformer2DModel-3.5"), flow(), kl_vae(), **texts))


def hidream() -> Any:
    texts = TWO_TEXTS | absent("text_encoder_3", "tokenizer_3", "text_encoder_4", "tokenizer_4")
    pipe = HiDreamImagePipeline(
        flow(), kl_vae(), transformer=model("HiDreamImageTransformer2DModel"), **texts
    )
    pipe.default_sample_size = 8  # the pipeline scales every picture to this many latents
    return quiet(pipe)


def hunyuan_dit() -> Any:
    missing = TWO_TEXTS | absent("safety_checker", "feature_extractor")
    transformer = model("HunyuanDiT2DModel")
    return quiet(
        HunyuanDiTPipeline(
            vae=kl_vae(), transformer=transformer, scheduler=ddim(), requires_safety_checker=False, **missing
        )
    )


def dc_vae() -> AutoencoderDC:
    """The autoencoder of Sana: 2 x 2 pixels to one latent."""
    return tiny(
        AutoencoderDC,
        latent_channels=4,
        attention_head_dim=4,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
    )


def plain(cls: type, denoiser: str, *, vae: Any = kl_vae, scheduler: Any = flow, **config: Any) -> Any:
    """A builder of a pipeline with one text encoder, which is absent."""

    def build() -> Any:
        transformer = model(denoiser, **config)
        return quiet(cls(transformer=transformer, vae=vae(), scheduler=scheduler(), **ONE_TEXT))

    return build


BINNED = {**PROMPTS, **MASKS, "negative_prompt": None, "use_resolution_binning": False, **SMALL}
NEGATIVE = {
    "negative_prompt_embeds": noise(1, 6, 16, seed=3),
    "negative_pooled_prompt_embeds": noise(1, 16, seed=4),
}
LAYERS = noise(6, 1, 6, 16, seed=5)
CASES = [
    PipelineCase("DiTPipeline", dit, calling(class_labels=[7], output_type="pt"), "batched"),
    PipelineCase("FluxPipeline", flux, calling(**PROMPT, **POOLED, **SMALL), "none"),
    PipelineCase(
        "FluxPipeline-true-cfg",
        flux,
        calling(**PROMPT, **POOLED, **NEGATIVE, true_cfg_scale=3.0, **SMALL),
        "two-pass",
    ),
    PipelineCase(
        "FluxImg2ImgPipeline",
        lambda: flux(FluxImg2ImgPipeline),
        calling(image=picture(1, 3, 16, 16), strength=0.7, **PROMPT, **POOLED, **SMALL),
        "none",
    ),
    PipelineCase(
        "FluxInpaintPipeline",
        lambda: flux(FluxInpaintPipeline),
        calling(
            image=picture(1, 3, 16, 16),
            mask_image=picture(1, 1, 16, 16),
            strength=0.7,
            **PROMPT,
            **POOLED,
            **SMALL,
        ),
        "none",
    ),
    PipelineCase(
        "FluxKontextPipeline",
        lambda: flux(FluxKontextPipeline),
        calling(image=picture(1, 3, 16, 16), max_area=256, _auto_resize=False, **PROMPT, **POOLED, **SMALL),
        "none",
    ),
    PipelineCase("StableDiffusion3Pipeline", sd3, calling(**PROMPTS, **BOTH_POOLED, **SMALL), "batched"),
    PipelineCase(
        "PixArtAlphaPipeline",
        plain(PixArtAlphaPipeline, "PixArtTransformer2DModel", scheduler=ddim),
        calling(**BINNED),
        "batched",
    ),
    PipelineCase(
        "PixArtSigmaPipeline",
        plain(PixArtSigmaPipeline, "PixArtTransformer2DModel", scheduler=ddim),
        calling(**BINNED),
        "batched",
    ),
    PipelineCase(
        "SanaPipeline",
        plain(SanaPipeline, "SanaTransformer2DModel", vae=dc_vae),
        calling(**{**BINNED, "height": 32, "width": 32}),
        "batched",
    ),
    PipelineCase(
        "ChromaPipeline",
        plain(ChromaPipeline, "ChromaTransformer2DModel"),
        calling(**PROMPTS, **{key: mask.bool() for key, mask in MASKS.items()}, **SMALL),
        "two-pass",
        notes="no cache_context; the text mask is the same kind of tensor in both branches",
    ),
    PipelineCase(
        "QwenImagePipeline",
        plain(
            QwenImagePipeline,
            "QwenImageTransformer2DModel",
            vae=lambda: wan_vae(
                AutoencoderKLQwenImage, z_dim=4, latents_mean=[0.0] * 4, latents_std=[1.0] * 4
            ),
        ),
        calling(
            **PROMPTS,
            prompt_embeds_mask=EVERY_TOKEN,
            negative_prompt_embeds_mask=MOST_TOKENS,
            height=64,
            width=64,
            output_type="latent",
        ),
        "two-pass",
    ),
    PipelineCase(
        "Lumina2Pipeline",
        plain(Lumina2Pipeline, "Lumina2Transformer2DModel"),
        calling(**PROMPTS, **MASKS, **SMALL),
        "two-pass",
        notes="no cache_context; time rises",
    ),
    PipelineCase(
        "ZImagePipeline",
        plain(ZImagePipeline, "ZImageTransformer2DModel"),
        calling(prompt_embeds=[noise(6, 16, seed=1)], negative_prompt_embeds=[noise(4, 16, seed=2)], **SMALL),
        "batched",
        notes="latents and texts are lists, passed by position",
    ),
    PipelineCase(
        "HiDreamImagePipeline",
        hidream,
        calling(
            prompt_embeds_t5=noise(1, 6, 16, seed=1),
            negative_prompt_embeds_t5=noise(1, 6, 16, seed=2),
            prompt_embeds_llama3=LAYERS,
            negative_prompt_embeds_llama3=LAYERS.flip(0),
            **BOTH_POOLED,
            **SMALL,
        ),
        "batched",
    ),
    PipelineCase(
        "AuraFlowPipeline",
        plain(AuraFlowPipeline, "AuraFlowTransformer2DModel"),
        calling(**PROMPTS, **MASKS, **SMALL),
        "batched",
    ),
    PipelineCase(
        "CogView4Pipeline",
        plain(CogView4Pipeline, "CogView4Transformer2DModel"),
        calling(**PROMPTS, **SMALL),
        "two-pass",
    ),
    PipelineCase(
        "HunyuanDiTPipeline",
        hunyuan_dit,
        calling(
            **PROMPTS,
            **MASKS,
            prompt_embeds_2=noise(1, 6, 16, seed=5),
            negative_prompt_embeds_2=noise(1, 6, 16, seed=6),
            prompt_attention_mask_2=EVERY_TOKEN,
            negative_prompt_attention_mask_2=EVERY_TOKEN,
            use_resolution_binning=False,
            **SMALL,
        ),
        "batched",
    ),
]
