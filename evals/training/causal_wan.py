"""The causal testbed: the wan testbed's denoiser, trained on to make a video frame by frame from the frames before.

Each frame is trained as a rollout sees it: its noise level is its own, and it attends to clean frames before it, whose keys and values
come from a clean pass. Clean and noisy frames go through the denoiser together, and a mask tells them apart (teacher forcing).
In half of the batches the clean frames are of the denoiser's own making, so that it learns to go on from its own errors
(self-resampling, Guo et al. 2025, arXiv 2512.15702; ours takes one step from each frame's own noise level).

Three more things make it fit a long rollout. Three batches of four are first frames alone: there only the text says what is seen, while
a later frame shows what the frames before it show. Half of the clips begin in the middle of a longer one, as a window does that has lost
the first frame. And one frame in eight is pure noise, from where each chunk of a rollout starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from torch import Tensor, nn

from diffcache.evals.testbeds import zoo
from diffcache.evals.testbeds.bouncing import bouncing_clips
from diffcache.evals.training import text
from diffcache.evals.training.common import drawn, forget_origin, is_block_matrix, shifted_sigma
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser
from diffcache.evals.training.wan import SHIFT
from diffcache.evals.training.wan_vae import SIDE
from diffcache.hooks.attention_calls import AttentionCall, AttentionCalls

FRAMES = 17
"""Of pixels in a training clip; 9 latent frames."""
TOKENS = 16
"""Of a latent frame."""
_BATCH = 8
_STARTS = 48
"""First frames in a batch of these."""
_LATER = 4
"""Latent frames by which a window begins later than its clip, at most."""
_POOL = 1_200
_POOL_OF_STARTS = 6_000
_PURE = 0.125
"""Share of frames that are pure noise."""
_OWN_NOISE = 0.8
"""Frames of the denoiser's own making start from noise levels up to this one."""


class MaskedAttention:
    """Masks each attention of the video's tokens on themselves.

    Args:
        mask: which token sees which, bool [tokens, tokens].
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def attend(self, call: AttentionCall) -> Tensor:
        size = len(self.mask)
        if call.query.shape[-2] == call.key.shape[-2] == size:
            call = call.with_keys(call.key, call.value, self.mask.to(call.query.device))
        return call.compute()


class TeacherForcing:
    """A denoiser on a clip's clean frames and its noisy ones at once: a noisy frame sees itself and the clean frames before it.

    Args:
        transformer: its rotary embedding is wrapped, so that a frame's two versions stand at one place.
        frames: of a clip.
        tokens: of a frame.
    """

    def __init__(self, transformer: Any, frames: int, tokens: int) -> None:
        frame = torch.arange(frames).repeat_interleave(tokens)
        seen = torch.zeros(2 * len(frame), 2 * len(frame), dtype=torch.bool)
        past, own = seen[:, : len(frame)], seen[:, len(frame) :]
        past[: len(frame)] = frame[:, None] >= frame
        past[len(frame) :] = frame[:, None] > frame
        own[len(frame) :] = frame[:, None] == frame
        self.transformer, self.tokens = transformer, tokens
        self.mask = MaskedAttention(seen)

    def __call__(self, clean: Tensor, noisy: Tensor, sigma: Tensor, states: Tensor) -> Tensor:
        """The velocity of the noisy frames at their noise levels [n, frames]."""
        frames = clean.shape[2]
        rotary = self.transformer.rope
        told = torch.cat((torch.zeros_like(sigma), sigma), 1).repeat_interleave(self.tokens, 1) * 1000
        self.transformer.rope = _TwicePlaced(rotary)
        try:
            with AttentionCalls(self.mask):
                output = self.transformer(torch.cat((clean, noisy), 2), told, states, return_dict=False)[0]
        finally:
            self.transformer.rope = rotary
        velocity: Tensor = output[:, :, frames:]
        return velocity


class _TwicePlaced(nn.Module):
    """A rotary embedding for the clean and then the noisy frames of a clip."""

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, latents: Tensor) -> tuple[Tensor, ...]:
        rows = self.rotary(latents[:, :, : latents.shape[2] // 2])
        return tuple(torch.cat((part, part), 1) for part in rows)


def noised(
    clean: Tensor, generator: torch.Generator, most: float = 1.0, pure: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Clips with a noise level for each frame; their velocities; and the levels [n, frames].

    Args:
        clean: [n, channels, frames, height, width].
        generator: of noise and levels.
        most: no level is higher.
        pure: share of frames with the level 1.
    """
    noise = torch.randn(clean.shape, generator=generator, device=clean.device)
    sigma = shifted_sigma(clean.shape[0] * clean.shape[2], SHIFT, generator).view(len(clean), -1) * most
    if pure:
        sigma[torch.rand(sigma.shape, generator=generator, device=clean.device) < pure] = 1.0
    level = sigma[:, None, :, None, None]
    return (1 - level) * clean + level * noise, noise - clean, sigma


def train(training: Training) -> Progress:
    """Trains a denoiser on, and saves it to `training.out`/transformer. All else is the wan testbed's.

    It begins as the wan testbed's; to resume without a checkpoint is to go on from what `training.out` has.
    """
    torch.manual_seed(training.seed)
    device = training.device
    vae = AutoencoderKLWan.from_pretrained(zoo.FOLDER / "wan" / "vae").to(device)
    training.folder.mkdir(parents=True, exist_ok=True)
    clips, of_clips = clip_latents(vae, training.folder / "clips.pt", _POOL, FRAMES + 2 * _LATER)
    starts, of_starts = clip_latents(vae, training.folder / "starts.pt", _POOL_OF_STARTS, 1)
    states, start_states = (_states([*captions, ""]).to(device) for captions in (of_clips, of_starts))
    finished = training.out / "transformer"
    begun = finished if training.resume and finished.exists() else zoo.FOLDER / "wan" / "transformer"
    transformer: Any = WanTransformer3DModel.from_pretrained(begun).to(device)
    frames = clips.shape[2] - _LATER
    forced = TeacherForcing(transformer, frames, TOKENS)

    def window(generator: torch.Generator) -> Tensor:
        """The error on clips, frame after frame."""
        clean, prompts = drawn(clips, _BATCH, generator)
        begin = max(0, int(torch.randint(-_LATER, _LATER + 1, (), generator=generator, device=device)))
        clean = clean[:, :, begin : begin + frames]
        past = clean
        if float(torch.rand(1, generator=generator, device=device)) < 0.5:
            noisy, _, sigma = noised(clean, generator, _OWN_NOISE)
            with torch.no_grad():
                velocity = forced(clean, noisy, sigma, states[prompts])
            past = noisy - sigma[:, None, :, None, None] * velocity
        first = int(begin > 0)  # Which comes after frames that cannot be seen: it is given, and not learned.
        past = torch.cat((clean[:, :, :first], past[:, :, first:]), 2)
        noisy, target, sigma = noised(clean, generator, pure=_PURE)
        error = forced(past, noisy, sigma, states[prompts]) - target
        return error[:, :, first:].square().mean()

    def start(generator: torch.Generator) -> Tensor:
        """The error on first frames."""
        clean, prompts = drawn(starts, _STARTS, generator)
        noisy, target, sigma = noised(clean, generator, pure=_PURE)
        told = sigma.repeat_interleave(TOKENS, 1) * 1000
        output = transformer(noisy, told, start_states[prompts], return_dict=False)[0]
        error: Tensor = (output - target).square().mean()
        return error

    def loss(generator: torch.Generator) -> Tensor:
        starts_now = float(torch.rand(1, generator=generator, device=device)) < 0.75
        return start(generator) if starts_now else window(generator)

    progress = fit(transformer, loss, Optimiser(transformer, is_block_matrix), Pace(lr=2e-3), training)
    transformer.half().save_pretrained(finished)
    forget_origin(finished / "config.json")
    return progress


def clip_latents(vae: AutoencoderKLWan, path: Path, n: int, frames: int) -> tuple[Tensor, Sequence[str]]:
    """Encoded training clips [n, 16, latent frames, 8, 8] in float16, normalised per channel, and their captions."""
    if path.exists():
        saved = torch.load(path, weights_only=True)
        return saved["latents"], saved["captions"]
    chunks, captions = [], list[str]()
    for part in range(n // 50):
        batch = bouncing_clips(50, seed=70_000 + part, side=SIDE, frames=frames)
        captions += batch.captions
        chunks.append(encoded(vae, batch.pixels))
    latents = torch.cat(chunks)
    torch.save({"latents": latents, "captions": captions}, path)
    return latents, captions


@torch.no_grad()
def encoded(vae: AutoencoderKLWan, pixels: Tensor) -> Tensor:
    """Latents in float16 on the CPU, normalised per channel, of clips [n, 3, frames, side, side] in 0..1."""
    mean, std = (
        torch.tensor(part).view(1, -1, 1, 1, 1) for part in (vae.config.latents_mean, vae.config.latents_std)
    )
    parts = [
        vae.encode((part * 2 - 1).to(vae.device)).latent_dist.mode().cpu() for part in torch.split(pixels, 50)
    ]
    return ((torch.cat(parts) - mean) / std).half()


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
