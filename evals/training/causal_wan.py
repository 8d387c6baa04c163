"""The causal testbed: the wan testbed's denoiser, trained on to make a video frame by frame from the frames before.

Each latent frame has a noise level of its own (diffusion forcing, Chen et al. 2024, arXiv 2407.01392), and attention is
block-causal: a frame sees itself and the frames before it. In half of the samples the frames before a random one are clean or
nearly so, as they are in a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from torch import Tensor

from diffcache.evals.testbeds import zoo
from diffcache.evals.testbeds.bouncing import bouncing_clips
from diffcache.evals.training import text
from diffcache.evals.training.common import drawn, is_block_matrix, shifted_sigma
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser
from diffcache.evals.training.wan import SHIFT
from diffcache.evals.training.wan_vae import SIDE
from diffcache.hooks.attention_calls import AttentionCall, AttentionCalls

FRAMES = 17
"""Of pixels in a training clip; 9 latent frames."""
TOKENS = 16
"""Of a latent frame."""
_BATCH = 16
_POOL = 3_000
_CONTEXT_NOISE = 0.1
"""The highest noise level of a frame that counts as nearly clean."""


class BlockCausalMask:
    """Masks each attention of the video's tokens on themselves, so that a frame sees no later frame.

    Args:
        frames: of the video.
        tokens: of a frame.
    """

    def __init__(self, frames: int, tokens: int) -> None:
        frame = torch.arange(frames).repeat_interleave(tokens)
        self.mask = frame[:, None] >= frame[None, :]

    def attend(self, call: AttentionCall) -> Tensor:
        size = len(self.mask)
        if call.query.shape[-2] == call.key.shape[-2] == size:
            call = call.with_keys(call.key, call.value, self.mask.to(call.query.device))
        return call.compute()


def noise_levels(n: int, frames: int, generator: torch.Generator) -> Tensor:
    """Noise levels [n, frames]: independent, but that in half of the samples the frames before a random one are nearly clean."""
    device = generator.device
    levels = shifted_sigma(n * frames, SHIFT, generator).view(n, frames)
    first = torch.randint(frames, (n, 1), generator=generator, device=device)
    first = first * (torch.rand(n, 1, generator=generator, device=device) < 0.5)
    nearly = torch.rand(n, frames, generator=generator, device=device) * _CONTEXT_NOISE
    nearly = nearly * (torch.rand(n, frames, generator=generator, device=device) < 0.5)
    return torch.where(torch.arange(frames, device=device) < first, nearly, levels)


def train(training: Training) -> Progress:
    """Trains the denoiser of the wan testbed on, and saves it to `training.out`/transformer. All else is the wan testbed's."""
    torch.manual_seed(training.seed)
    device = training.device
    vae = AutoencoderKLWan.from_pretrained(zoo.FOLDER / "wan" / "vae").to(device)
    latents, captions = clip_latents(vae, training.folder, device)
    states = _states([*captions, ""]).to(device)
    transformer: Any = WanTransformer3DModel.from_pretrained(zoo.FOLDER / "wan" / "transformer").to(device)
    causal = BlockCausalMask(latents.shape[2], TOKENS)

    def loss(generator: torch.Generator) -> Tensor:
        clean, prompts = drawn(latents, _BATCH, generator)
        sigma = noise_levels(_BATCH, clean.shape[2], generator)
        noise = torch.randn(clean.shape, generator=generator, device=device)
        level = sigma[:, None, :, None, None]
        noisy = (1 - level) * clean + level * noise
        with AttentionCalls(causal):
            output = transformer(
                noisy, sigma.repeat_interleave(TOKENS, 1) * 1000, states[prompts], return_dict=False
            )[0]
        error = (output - (noise - clean)).square().mean((1, 3, 4))
        counted = (sigma > _CONTEXT_NOISE).float()  # what is nearly clean has nothing to be learnt from
        total: Tensor = (error * counted).sum() / counted.sum()
        return total

    progress = fit(transformer, loss, Optimiser(transformer, is_block_matrix), Pace(lr=2e-3), training)
    transformer.half().save_pretrained(training.out / "transformer")
    return progress


@torch.no_grad()
def clip_latents(vae: AutoencoderKLWan, folder: Path, device: torch.device) -> tuple[Tensor, Sequence[str]]:
    """Encoded training clips [n, 16, 9, 8, 8] in float16, normalised per channel, and their captions."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "clips.pt"
    if path.exists():
        saved = torch.load(path, weights_only=True)
        return saved["latents"], saved["captions"]
    mean = torch.tensor(vae.config.latents_mean, device=device).view(1, -1, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std, device=device).view(1, -1, 1, 1, 1)
    chunks, captions = [], list[str]()
    for part in range(_POOL // 50):
        batch = bouncing_clips(50, seed=70_000 + part, side=SIDE, frames=FRAMES)
        captions += batch.captions
        encoded = vae.encode((batch.pixels * 2 - 1).to(device)).latent_dist.mode()
        chunks.append(((encoded - mean) / std).half().cpu())
    latents = torch.cat(chunks)
    torch.save({"latents": latents, "captions": captions}, path)
    return latents, captions


@torch.no_grad()
def _states(prompts: list[str]) -> Tensor:
    """What the wan testbed's text encoder makes of prompts, [n, tokens, channels]; padding is zero, as in its pipeline."""
    pipe = zoo.load("wan")
    ids, mask = text.token_ids(pipe.tokenizer, prompts)
    states = [
        pipe.text_encoder(a, b).last_hidden_state * b[..., None]
        for a, b in zip(torch.split(ids, 500), torch.split(mask, 500), strict=True)
    ]
    return torch.cat(states)
