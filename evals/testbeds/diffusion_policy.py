"""A tiny diffusion policy as robots have them: a transformer decoder, a noise scheduler, a loop by hand.

The network follows `TransformerForDiffusion` of Diffusion Policy (Chi et al. 2023, arXiv 2303.04137). Letters in shapes:
n episodes, h actions that are planned, o observations that are seen.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from diffusers import DDPMScheduler
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from diffcache import denoising_run

FOLDER = Path(__file__).resolve().parent / "policy"
_FILE = "policy.safetensors"
ACTION, OBSERVATION = 2, 6
HORIZON, SEEN = 8, 2
_WIDTH, _LAYERS, _HEADS = 64, 4, 4


class PolicyTransformer(nn.Module):
    """Noisy actions [n, h, 2], a timestep and observations [n, o, 6] to the noise in the actions, [n, h, 2].

    Its layers normalise first, so that each adds three branches to the stream: self-attention, cross-attention to the
    time and the observations, feed-forward. Action i sees the time and observations up to its own place.
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
        places = torch.arange(HORIZON).unsqueeze(1)
        hidden = torch.full((), -torch.inf)
        self.register_buffer("future", torch.where(places < places.T, hidden, 0.0), persistent=False)
        unseen = torch.arange(1 + SEEN) > places + 1
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
        """Write the weights in float16."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: value.half().contiguous() for name, value in self.state_dict().items()}, folder / _FILE
        )

    @classmethod
    def load(cls, folder: Path = FOLDER) -> PolicyTransformer:
        """The trained network in float32 evaluation mode."""
        net = cls()
        net.load_state_dict({name: value.float() for name, value in load_file(folder / _FILE).items()})
        return net.eval().requires_grad_(False)


def noise_scheduler() -> DDPMScheduler:
    """Diffusion Policy's: DDPM, 100 squared-cosine steps, the noise is predicted, samples are clipped."""
    return DDPMScheduler(
        num_train_timesteps=100,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="epsilon",
        clip_sample=True,
    )


@torch.no_grad()
def plan(
    net: nn.Module, observations: Tensor, steps: int, generator: torch.Generator, scheduler: Any = None
) -> Tensor:
    """Actions [n, h, 2] in [-1, 1] for observations [n, o, 6], by one denoising run.

    Args:
        net: a `PolicyTransformer`, accelerated or not.
        observations: see there.
        steps: denoising steps.
        generator: of the first noise and of what the noise scheduler adds.
        scheduler: a Diffusers noise scheduler; None: `noise_scheduler()`.
    """
    scheduler = scheduler or noise_scheduler()
    scheduler.set_timesteps(steps)
    actions = torch.randn(len(observations), HORIZON, ACTION, generator=generator)
    with denoising_run(net, steps) as run:
        for i, t in enumerate(scheduler.timesteps):
            run.begin_step(i)
            noise = net(actions, t, observations)
            actions = scheduler.step(noise, t, actions, generator=generator).prev_sample
    return actions


def _sinusoids(timestep: Tensor) -> Tensor:
    """[n, width] of timesteps [n]."""
    rates = torch.exp(-math.log(10_000) * torch.arange(_WIDTH // 2) / (_WIDTH // 2 - 1))
    angles = timestep.float().unsqueeze(1) * rates.to(timestep.device)
    return torch.cat([angles.sin(), angles.cos()], 1)
