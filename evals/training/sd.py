"""The latent UNet testbed: a small Stable Diffusion with a skip connection at each of its three levels."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from torch import Tensor, nn

from diffcache.evals.testbeds import procedural
from diffcache.evals.training import text
from diffcache.evals.training.common import (
    drawn,
    informative_timesteps,
    picture_latents,
    save_pipeline,
    v_target,
)
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

_BATCH = 32
_TEXT_WIDTH = 64
_WIDTHS = (48, 64, 80)


def build() -> nn.ModuleDict:
    """A UNet over 16 x 16 x 8 latents with two residual blocks per level, and a CLIP text encoder."""
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=8,
        out_channels=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=_WIDTHS,
        layers_per_block=2,
        cross_attention_dim=_TEXT_WIDTH,
        attention_head_dim=tuple(width // 16 for width in _WIDTHS),  # despite its name the number of heads
        norm_num_groups=8,
    )
    return nn.ModuleDict({"unet": unet, "text_encoder": text.clip_encoder(_TEXT_WIDTH)})


def noise_scheduler() -> DPMSolverMultistepScheduler:
    """DPM-Solver++ of second order for velocity predictions, with Stable Diffusion's noise levels."""
    # Made from DDIM's configuration, so that DDIM can be made from it again without clipping.
    ddim = DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        clip_sample=False,
        steps_offset=1,
    )
    return DPMSolverMultistepScheduler.from_config(ddim.config)


def is_matrix(name: str, parameter: Tensor) -> bool:
    """True for the weights that Muon updates: convolutions and matrices, but no embedding table."""
    return parameter.ndim >= 2 and "embedding" not in name and min(parameter.shape[:2]) >= 16


def train(training: Training) -> Progress:
    """Trains denoiser and text encoder together and saves the pipeline to `training.out`."""
    torch.manual_seed(training.seed)
    device = training.device
    vae = AutoencoderKL.from_pretrained(training.work / "vae" / "vae").to(device)
    data = picture_latents(vae, training.work / "pictures.pt", device)
    ids = text.token_ids(text.clip_tokenizer(), [*data.captions, ""])[0].to(device)  # last: the empty prompt
    models = build().to(device).eval()
    unet = models["unet"]
    alphas = noise_scheduler().alphas_cumprod.to(device)

    def loss(generator: torch.Generator) -> Tensor:
        clean, prompts = drawn(data.latents, _BATCH, generator)
        t = informative_timesteps(_BATCH, alphas, generator)
        noise = torch.randn(clean.shape, generator=generator, device=device)
        noisy, target = v_target(clean, noise, alphas, t)
        states = models["text_encoder"](ids[prompts]).last_hidden_state
        error: Tensor = (unet(noisy, t, encoder_hidden_states=states).sample - target).square().mean()
        return error

    def preview(path: Path) -> None:
        generator = torch.Generator(device).manual_seed(0)
        prompts = procedural.pictures(16, seed=7).captions
        pipe = _pipeline(models, vae)
        call = {"num_inference_steps": 20, "guidance_scale": 3.0, "output_type": "pt"}
        save_grid(pipe(prompts, generator=generator, **call).images, path)

    optimiser = Optimiser(models, is_matrix)
    progress = fit(models, loss, optimiser, Pace(lr=2e-3), training, preview)
    save_pipeline(_pipeline(models, vae), training.out)
    return progress


def _pipeline(models: nn.ModuleDict, vae: AutoencoderKL) -> StableDiffusionPipeline:
    pipe = StableDiffusionPipeline(
        vae=vae,
        text_encoder=models["text_encoder"],
        tokenizer=text.clip_tokenizer(),
        unet=models["unet"],
        scheduler=noise_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe
