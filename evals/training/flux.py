"""The flow-matching text-to-picture testbed: a deep, thin Flux with its own text encoders."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from torch import Tensor, nn

from diffcache.evals.testbeds import procedural
from diffcache.evals.training import text
from diffcache.evals.training.common import (
    flow_batch,
    is_block_matrix,
    picture_latents,
    save_pipeline,
    zero_modulation,
)
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

SHIFT = 2.0
_BATCH = 32
_TEXT_WIDTH = 64


def build() -> nn.ModuleDict:
    """Four two-stream and twelve one-stream blocks of width 80, with CLIP (pooled) and T5 (sequence) encoders."""
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=32,
        num_layers=4,
        num_single_layers=12,
        attention_head_dim=16,
        num_attention_heads=5,
        joint_attention_dim=_TEXT_WIDTH,
        pooled_projection_dim=_TEXT_WIDTH,
        guidance_embeds=False,
        axes_dims_rope=(4, 6, 6),
    )
    zero_modulation(transformer)
    return nn.ModuleDict(
        {
            "transformer": transformer,
            "text_encoder": text.clip_encoder(_TEXT_WIDTH),
            "text_encoder_2": text.t5_encoder(_TEXT_WIDTH),
        }
    )


def pack(latents: Tensor) -> Tensor:
    """Latents [n, c, h, w] as FluxPipeline's tokens [n, h / 2 * w / 2, 4 * c]."""
    n, c, h, w = latents.shape
    return latents.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(n, h * w // 4, 4 * c)


def train(training: Training) -> Progress:
    """Trains denoiser and text encoders together and saves the pipeline to `training.out`."""
    torch.manual_seed(training.seed)
    device = training.device
    vae = AutoencoderKL.from_pretrained(training.work / "vae" / "vae").to(device)
    data = picture_latents(vae, training.work / "pictures.pt", device)
    tokens = pack(data.latents)
    clip_ids, t5_ids = _ids([*data.captions, ""], device)  # the last row is the empty prompt
    models = build().to(device).eval()
    transformer = torch.compile(models["transformer"])
    picture_ids = FluxPipeline._prepare_latent_image_ids(1, 8, 8, device, torch.float32)
    text_ids = torch.zeros(text.LENGTH, 3, device=device)

    def loss(generator: torch.Generator) -> Tensor:
        noisy, target, sigma, prompts = flow_batch(tokens, _BATCH, SHIFT, generator)
        output = transformer(
            hidden_states=noisy,
            timestep=sigma,
            pooled_projections=models["text_encoder"](clip_ids[prompts]).pooler_output,
            encoder_hidden_states=models["text_encoder_2"](t5_ids[prompts]).last_hidden_state,
            txt_ids=text_ids,
            img_ids=picture_ids,
            return_dict=False,
        )[0]
        error: Tensor = (output - target).square().mean()
        return error

    def preview(path: Path) -> None:
        prompts = procedural.pictures(16, seed=7).captions
        pipe = _pipeline(models, vae)
        call = {"height": 64, "width": 64, "max_sequence_length": text.LENGTH, "output_type": "pt"}
        generator = torch.Generator(device).manual_seed(0)
        pictures = pipe(
            prompts,
            negative_prompt=[""] * 16,
            true_cfg_scale=3.0,
            num_inference_steps=20,
            generator=generator,
            **call,
        ).images
        save_grid(pictures, path)

    optimiser = Optimiser(models, is_block_matrix)
    progress = fit(models, loss, optimiser, Pace(lr=3e-3), training, preview)
    save_pipeline(_pipeline(models, vae), training.out)
    return progress


def _ids(captions: list[str], device: torch.device) -> tuple[Tensor, Tensor]:
    clip, _ = text.token_ids(text.clip_tokenizer(), captions)
    t5, _ = text.token_ids(text.t5_tokenizer(), captions)
    return clip.to(device), t5.to(device)


def _pipeline(models: nn.ModuleDict, vae: AutoencoderKL) -> FluxPipeline:
    pipe = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=SHIFT),
        vae=vae,
        text_encoder=models["text_encoder"],
        tokenizer=text.clip_tokenizer(),
        text_encoder_2=models["text_encoder_2"],
        tokenizer_2=text.t5_tokenizer(),
        transformer=models["transformer"],
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe
