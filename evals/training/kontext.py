"""The Kontext testbed: edits of a reference picture, by a Flux that sees the reference's tokens beside its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxKontextPipeline,
    FluxTransformer2DModel,
)
from torch import Tensor, nn

from diffcache.evals.testbeds import edits, zoo
from diffcache.evals.testbeds.emoji import words
from diffcache.evals.training import text
from diffcache.evals.training.common import (
    encode,
    flow_target,
    is_block_matrix,
    made_once,
    save_pipeline,
    shifted_sigma,
    zero_modulation,
)
from diffcache.evals.training.edit_pictures import pairs, write_references
from diffcache.evals.training.flux import pack
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

LENGTH = 9  # tokens per prompt, padding included; the longest edit has seven words
_BATCH = 32
_TEXT_WIDTH = 64
_TRAINING_SHIFT = 2.0


def vocabulary() -> text.Vocabulary:
    """The words of the edits."""
    return text.Vocabulary(words(), LENGTH)


def build(vae: AutoencoderKL) -> FluxKontextPipeline:
    """Three two-stream and six one-stream blocks of width 96, and the noise scheduler that Flux ships."""
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=32,
        num_layers=3,
        num_single_layers=6,
        attention_head_dim=32,
        num_attention_heads=3,
        joint_attention_dim=_TEXT_WIDTH,
        pooled_projection_dim=_TEXT_WIDTH,
        guidance_embeds=False,
        axes_dims_rope=(8, 12, 12),
    )
    zero_modulation(transformer)
    nn.init.zeros_(transformer.proj_out.weight)
    pipe = FluxKontextPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        vae=vae,
        text_encoder=text.clip_encoder(_TEXT_WIDTH, vocabulary()),
        tokenizer=text.clip_tokenizer(vocabulary()),
        text_encoder_2=text.t5_encoder(_TEXT_WIDTH, vocabulary()),
        tokenizer_2=text.t5_tokenizer(vocabulary()),
        transformer=transformer.eval(),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


@dataclass(frozen=True)
class Tokens:
    """Encoded references and edited pictures, tokens [n, 64, 32] in float16, and the n prompts."""

    references: Tensor
    results: Tensor
    prompts: list[str]


@torch.no_grad()
def tokens(vae: AutoencoderKL, training: Training) -> Tokens:
    """Encodes the pairs of pictures, or reads their latents from the work folder if they are there."""
    drawn = pairs(training.work)
    both = torch.cat([drawn.references, drawn.results])
    latents = made_once(training.work / "kontext.pt", lambda: encode(vae, both, training.device))
    references, results = pack(latents).chunk(2)
    return Tokens(references, results, drawn.prompts)


def train(training: Training) -> Progress:
    """Trains denoiser and text encoders together and saves the pipeline to `training.out`."""
    torch.manual_seed(training.seed)
    device = training.device
    write_references(training.work, training.out / edits.SHEET.name)
    vae = AutoencoderKL.from_pretrained(training.work / "emoji_vae" / "vae").to(device)
    pipe = build(vae).to(device)
    data = tokens(vae, training)
    compiled: Any = torch.compile(pipe.transformer)
    ids = FluxKontextPipeline._prepare_latent_image_ids(1, 8, 8, device, torch.float32)
    of_reference = ids + torch.tensor([1.0, 0.0, 0.0], device=device)

    def loss(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(data.prompts), (_BATCH,), generator=generator, device=device).cpu()
        clean, reference = (part[rows].to(device).float() for part in (data.results, data.references))
        sigma = shifted_sigma(_BATCH, _TRAINING_SHIFT, generator)
        noise = torch.randn(clean.shape, generator=generator, device=device)
        noisy, target = flow_target(clean, noise, sigma)
        prompts = [data.prompts[i] for i in rows.tolist()]
        states, pooled, text_ids = pipe.encode_prompt(prompts, None, max_sequence_length=LENGTH)
        output = compiled(
            hidden_states=torch.cat([noisy, reference], 1),
            timestep=sigma,
            pooled_projections=pooled,
            encoder_hidden_states=states,
            txt_ids=text_ids,
            img_ids=torch.cat([ids, of_reference]),
            return_dict=False,
        )[0]
        error: Tensor = (output[:, : clean.shape[1]] - target).square().mean()
        return error

    def preview(path: Path) -> None:
        call = zoo.sample_call("kontext", 0, 28, n=16)
        save_grid(torch.cat([call["image"], pipe(**call)[0]]), path)

    trained = ("transformer", "text_encoder", "text_encoder_2")
    models = nn.ModuleDict({name: pipe.components[name] for name in trained})
    progress = fit(models, loss, Optimiser(models, is_block_matrix), Pace(lr=3e-3), training, preview)
    save_pipeline(pipe, training.out)
    return progress
