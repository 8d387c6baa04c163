"""A tiny diffusion policy, as robots use them: a transformer decoder, a noise scheduler, and a hand-written loop.

The network follows `TransformerForDiffusion` of Diffusion Policy (Chi et al. 2023, arXiv 2303.04137). Letters in shapes:
n episodes, h actions, o observations.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from diffusers import DDPMScheduler
from torch import Tensor, nn

from diffcache.attach.attach import denoising_run
from diffcache.evals.testbeds.half_weights import save_weights, with_weights

FOLDER = Path(__file__).resolve().parent / "policy"
_FILE = "policy.safetensors"
ACTION, OBSERVATION = 2, 6
HORIZON, SEEN = 8, 2
_WIDTH, _LAYERS, _HEADS = 64, 4, 4


class PolicyTransformer(nn.Module):
    """Predicts the noise in noisy actions, [n, h, 2], from them, a timestep and observations [n, o, 6].

    Its layers normalise first. Each adds the outputs of three sub-layers to the stream: self-attention, cross-attention
    to the time and the observations, and feed-forward. Action i attends to the time and the first observations up to
    its own index.
    """

    def __init__(self) -> None:
        super().__init__()
        self.action_embed = nn.Linear(ACTION, _WIDTH)
        self.action_position = nn.Parameter(torch.randn(1, HORIZON, _WIDTH) * 0.02)
        self.observation_embed = nn.Linear(OBSERVATION, _WIDTH)
        self.memory_position = nn.Parameter(torch.randn(1, 1 + SEEN, _WIDTH) * 0.02)
        self.memory = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.Mish(), nn.Linear(4 * _WIDTH, _WIDTH))
        layer = nn.TransformerDecoderLayer(
            _WIDTH, _HEADS, 4 * _WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.decoder = nn.TransformerDecoder(layer, _LAYERS)
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, ACTION)
        index = torch.arange(HORIZON).unsqueeze(1)
        hidden = torch.full((), -torch.inf)
        self.register_buffer("future", torch.where(index < index.T, hidden, 0.0), persistent=False)
        unseen = torch.arange(1 + SEEN) > index + 1
        self.register_buffer("unseen", torch.where(unseen, hidden, 0.0), persistent=False)

    def forward(self, sample: Tensor, timestep: Tensor, observations: Tensor) -> Tensor:
        """`timestep` is a scalar or [n]."""
        time = _sinusoids(timestep.expand(len(sample))).unsqueeze(1)
        memory = torch.cat([time, self.observation_embed(observations)], 1)
        memory = self.memory(memory + self.memory_position)
        stream = self.action_embed(sample) + self.action_position
        stream = self.decoder(stream, memory, tgt_mask=self.future, memory_mask=self.unseen)
        noise: Tensor = self.head(self.norm(stream))
        return noise

    def save(self, folder: Path) -> None:
        """Writes the weights in float16."""
        save_weights(self, folder / _FILE)

    @classmethod
    def load(cls, folder: Path = FOLDER) -> PolicyTransformer:
        """The trained network in float32 evaluation mode."""
        return with_weights(cls(), folder / _FILE)


def ddpm() -> DDPMScheduler:
    """The noise scheduler of Diffusion Policy: DDPM with 100 squared-cosine steps, noise prediction and clipped samples."""
    return DDPMScheduler(
        num_train_timesteps=100,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="epsilon",
        clip_sample=True,
    )


@torch.no_grad()
def sample_actions(
    net: nn.Module, observations: Tensor, steps: int, generator: torch.Generator, noise_scheduler: Any = None
) -> Tensor:
    """Actions [n, h, 2] in [-1, 1] for observations, from one denoising run.

    Args:
        net: a `PolicyTransformer`, accelerated or not.
        observations: [n, o, 6].
        steps: denoising steps.
        generator: of the first noise and of the noise that the noise scheduler adds.
        noise_scheduler: one of Diffusers; None: `ddpm()`.
    """
    scheduler = ddpm() if noise_scheduler is None else noise_scheduler
    scheduler.set_timesteps(steps)
    actions = torch.randn(len(observations), HORIZON, ACTION, generator=generator)
    with denoising_run(net, steps) as run:
        for i, t in enumerate(scheduler.timesteps):
            run.begin_step(i)
            noise = net(actions, t, observations)
            actions = scheduler.step(noise, t, actions, generator=generator).prev_sample
    return actions


def _sinusoids(timestep: Tensor) -> Tensor:
    """Embeddings [n, width] of timesteps [n]."""
    rates = torch.exp(-math.log(10_000) * torch.arange(_WIDTH // 2) / (_WIDTH // 2 - 1))
    angles = timestep.float().unsqueeze(1) * rates.to(timestep.device)
    return torch.cat([angles.sin(), angles.cos()], 1)
