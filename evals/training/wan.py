"""The text-to-clip testbed: a deep, thin Wan over the clip autoencoder's latents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from torch import Tensor, nn

from diffcache.evals.testbeds import procedural
from diffcache.evals.training import text
from diffcache.evals.training.common import flow_batch, is_block_matrix, save_pipeline
from diffcache.evals.training.grids import save_grid
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser
from diffcache.evals.training.wan_vae import FRAMES, LATENT_CHANNELS, SIDE

SHIFT = 2.0
_BATCH = 32
_POOL = 10_000
_TEXT_WIDTH = 64
_WIDTH = 80


def build() -> nn.ModuleDict:
    """Fourteen blocks of width 80 over 5 x 4 x 4 tokens, with a UMT5 text encoder."""
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=_WIDTH // 16,
        attention_head_dim=16,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        text_dim=_TEXT_WIDTH,
        freq_dim=128,
        ffn_dim=4 * _WIDTH,
        num_layers=14,
        rope_max_seq_len=64,
    )
    with torch.no_grad():
        for block in transformer.blocks:
            block.scale_shift_table.mul_(0.1)
    return nn.ModuleDict({"transformer": transformer, "text_encoder": text.umt5_encoder(_TEXT_WIDTH)})


@torch.no_grad()
def clip_latents(vae: AutoencoderKLWan, cache: Path, device: torch.device) -> tuple[Tensor, list[str]]:
    """Encoded training clips [n, 16, 5, 8, 8] in float16, normalised per channel, and their captions."""
    mean = torch.tensor(vae.config.latents_mean, device=device).view(1, -1, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std, device=device).view(1, -1, 1, 1, 1)
    captions: list[str] = []
    chunks: list[Tensor] = []
    saved = torch.load(cache, weights_only=True) if cache.exists() else None
    for part in range(_POOL // 1000):
        batch = procedural.clips(1000, seed=60_000 + part, side=SIDE, frames=FRAMES)
        captions += batch.captions
        for pixels in torch.split(batch.pixels, 50) if saved is None else ():
            latents = vae.encode((pixels * 2 - 1).to(device)).latent_dist.mode()
            chunks.append(((latents - mean) / std).half().cpu())
    if saved is None:
        saved = torch.cat(chunks)
        torch.save(saved, cache)
    return saved, captions


def train(training: Training) -> Progress:
    """Trains denoiser and text encoder together and saves the pipeline to `training.out`."""
    torch.manual_seed(training.seed)
    device = training.device
    vae = AutoencoderKLWan.from_pretrained(training.work / "wan_vae" / "vae").to(device)
    latents, captions = clip_latents(vae, training.work / "clips.pt", device)
    ids, mask = (part.to(device) for part in text.token_ids(text.t5_tokenizer(), [*captions, ""]))
    models = build().to(device).eval()
    transformer: Any = models["transformer"]
    transformer.compile_repeated_blocks()

    def loss(generator: torch.Generator) -> Tensor:
        noisy, target, sigma, prompts = flow_batch(latents, _BATCH, SHIFT, generator)
        states = models["text_encoder"](ids[prompts], mask[prompts]).last_hidden_state
        states = states * mask[prompts, :, None]  # WanPipeline also sets what follows a prompt to zero
        output = transformer(noisy, sigma * 1000, states, return_dict=False)[0]
        error: Tensor = (output - target).square().mean()
        return error

    def preview(path: Path) -> None:
        generator = torch.Generator(device).manual_seed(0)
        prompts = procedural.clips(8, seed=7).captions
        size = {"height": SIDE, "width": SIDE, "num_frames": FRAMES, "max_sequence_length": text.LENGTH}
        call = {"num_inference_steps": 20, "guidance_scale": 3.0, "output_type": "pt"}
        clips = _pipeline(models, vae)(prompts, generator=generator, **size, **call).frames
        save_grid(clips.flatten(0, 1), path, columns=FRAMES)

    optimiser = Optimiser(models, is_block_matrix)
    progress = fit(models, loss, optimiser, Pace(lr=3e-3), training, preview)
    save_pipeline(_pipeline(models, vae), training.out)
    return progress


def _pipeline(models: nn.ModuleDict, vae: AutoencoderKLWan) -> WanPipeline:
    pipe = WanPipeline(
        tokenizer=text.t5_tokenizer(),
        text_encoder=models["text_encoder"],
        vae=vae,
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT
        ),
        transformer=models["transformer"],
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe
