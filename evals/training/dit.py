"""The class-conditional testbed: a deep, thin DiT over the shared autoencoder's latents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DiTPipeline,
    DiTTransformer2DModel,
    DPMSolverMultistepScheduler,
)
from torch import Tensor

from diffcache.evals.testbeds import procedural
from diffcache.evals.training.common import (
    encode,
    informative_timesteps,
    is_block_matrix,
    save_pipeline,
    v_target,
    zero_modulation,
)
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

NULL_LABEL = 1000  # DiTPipeline guides against this label and no other
_BATCH = 32
_POOL = 12_000


def build() -> DiTTransformer2DModel:
    """Sixteen blocks of width 80 over 64 tokens."""
    model = DiTTransformer2DModel(
        num_attention_heads=5,
        attention_head_dim=16,
        in_channels=8,
        out_channels=8,
        num_layers=16,
        sample_size=16,
        patch_size=2,
        num_embeds_ada_norm=NULL_LABEL,
    )
    zero_modulation(model)
    return model


def centred_pictures(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pictures [n, 3, 64, 64] of one large object near the middle, and labels [n].

    A label does not tell size or position. If both varied, as in the captioned pictures, so small a model would
    need far more training before its outlines were sharp.
    """
    generator = torch.Generator().manual_seed(seed)
    scenes = procedural.sample_scenes(n, generator, second=0.0)
    centre = (torch.rand(n, 2, 2, generator=generator) - 0.5) * 0.3
    radius = 0.42 + 0.2 * torch.rand(n, 2, generator=generator)
    return procedural.render(replace(scenes, centre=centre, radius=radius), 64), scenes.labels


def noise_scheduler() -> DPMSolverMultistepScheduler:
    """DPM-Solver++ of second order for velocity predictions; its configuration also fits DDIM."""
    # Made from DDIM's configuration, so that DDIM can be made from it again without clipping.
    ddim = DDIMScheduler(
        beta_schedule="linear",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        clip_sample=False,
    )
    return DPMSolverMultistepScheduler.from_config(ddim.config)


def train(training: Training) -> Progress:
    """Trains the denoiser and saves the pipeline to `training.out`; the autoencoder is read from `training.work`."""
    torch.manual_seed(training.seed)
    device = training.device
    vae = AutoencoderKL.from_pretrained(training.work / "vae" / "vae").to(device)
    pixels, labels = centred_pictures(_POOL, seed=70_000)
    latents = encode(vae, pixels, device)
    model = build().to(device).eval()  # in training mode each block would drop labels by itself
    compiled: Any = torch.compile(model)
    alphas = noise_scheduler().alphas_cumprod.to(device)

    def loss(generator: torch.Generator) -> Tensor:
        rows = torch.randint(_POOL, (_BATCH,), generator=generator, device=device).cpu()
        clean, asked = latents[rows].to(device).float(), labels[rows].to(device)
        dropped = torch.rand(_BATCH, generator=generator, device=device) < 0.1
        asked = torch.where(dropped, NULL_LABEL, asked)
        t = informative_timesteps(_BATCH, alphas, generator)
        noise = torch.randn(clean.shape, generator=generator, device=device)
        noisy, target = v_target(clean, noise, alphas, t)
        error: Tensor = (compiled(noisy, timestep=t, class_labels=asked).sample - target).square().mean()
        return error

    def preview(path: Path) -> None:
        save_grid(_pipeline(model, vae)(**_call(16, 20, device)).images, path)

    pace = Pace(lr=3e-3)
    progress = fit(
        model,
        loss,
        Optimiser(model, is_block_matrix),
        pace,
        training,
        preview,
    )
    clear_unused_labels(model, procedural.NUM_CLASSES)
    save_pipeline(_pipeline(model, vae), training.out)
    return progress


def _pipeline(model: DiTTransformer2DModel, vae: AutoencoderKL) -> DiTPipeline:
    pipe = DiTPipeline(model, vae, noise_scheduler())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _call(n: int, steps: int, device: torch.device) -> dict[str, object]:
    labels = [(7 * i) % procedural.NUM_CLASSES for i in range(n)]
    generator = torch.Generator(device).manual_seed(0)
    return {
        "class_labels": labels,
        "guidance_scale": 3.0,
        "generator": generator,
        "num_inference_steps": steps,
        "output_type": "pt",
    }


@torch.no_grad()
def clear_unused_labels(model: DiTTransformer2DModel, classes: int) -> None:
    """Sets the embeddings of labels from `classes` to zero; the null label keeps its own."""
    for block in model.transformer_blocks:
        block.norm1.emb.class_embedder.embedding_table.weight[classes:NULL_LABEL] = 0
