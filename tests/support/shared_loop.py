"""A denoiser whose rows never depend on each other, to the bit, and loops over it: alone, or through a server."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ModelMixin
from diffusers.configuration_utils import ConfigMixin, register_to_config
from torch import Tensor, nn

from diffcache import accelerate, denoising_run
from diffcache.server.request import Request
from diffcache.server.server import Server

SHAPE = (4, 16)
"""Tokens and channels of a sample; whole vector registers, so that no element's arithmetic depends on its row."""


class WaveBlock(nn.Module):
    """x + sin(w x + time) / 4."""

    def __init__(self, phase: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, SHAPE[1]) + phase, requires_grad=False)

    def forward(self, hidden_states: Tensor, shift: Tensor) -> Tensor:
        return hidden_states + torch.sin(hidden_states * self.weight + shift) / 4


class Waves(ModelMixin, ConfigMixin):
    """Elementwise, in blocks. `ids` are the same for all samples, and the prompt is a vector or tokens for each."""

    @register_to_config
    def __init__(self, num_blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(WaveBlock(i / 8) for i in range(num_blocks))
        self.eval()

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        prompt: Tensor | None = None,
        extra: dict[str, Any] | None = None,
        ids: Tensor | None = None,
        return_dict: bool = False,
    ) -> tuple[Tensor]:
        shift = (timestep.to(hidden_states) / 1000).reshape(-1, 1, 1)
        if prompt is not None:
            shift = shift + prompt.reshape(len(prompt), -1)[:, :1, None]
        if extra is not None:
            shift = shift + extra["pooled"][0][:, :1, None]
        if ids is not None:
            shift = shift + ids[:, :1]
        x = hidden_states
        for block in self.blocks:
            x = block(x, shift)
        return (x - hidden_states,)


@dataclass(frozen=True)
class Job:
    """What one request asks for.

    Attributes:
        method: its name; None for no cache.
        options: of the method, as items.
        steps: of its loop.
        seed: of its latents and its prompt.
        guidance: how its passes come.
        rows: how many samples it has.
    """

    method: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    steps: int = 6
    seed: int = 0
    guidance: str | None = None
    rows: int = 1

    def noise(self) -> Tensor:
        return torch.randn(self.rows, *SHAPE, generator=torch.Generator().manual_seed(self.seed))

    def prompt(self) -> Tensor:
        return torch.linspace(0, 1, self.rows) + self.seed % 5

    def config(self) -> dict[str, Any]:
        return {"config": self.method, **dict(self.options)}


def noise_scheduler(steps: int) -> Any:
    made = FlowMatchEulerDiscreteScheduler()
    made.set_timesteps(steps)
    return made


def guided(uncond: Tensor, cond: Tensor) -> Tensor:
    return uncond + 2 * (cond - uncond)


@torch.no_grad()
def alone(denoiser: nn.Module, job: Job) -> Tensor:
    """The result of a job in a loop of its own."""
    own, times, x = copy.deepcopy(denoiser), noise_scheduler(job.steps), job.noise()
    if job.method is not None:
        accelerate(own, job.method, **dict(job.options))
    with denoising_run(own, job.steps, noise_scheduler=times) as run:
        for i, t in enumerate(times.timesteps):
            run.begin_step(i)
            time, prompt = t.expand(job.rows), job.prompt()
            if job.guidance is None:
                v = own(x, time, prompt)[0]
            elif job.guidance == "apart":
                v = guided(own(x, time, torch.zeros_like(prompt))[0], own(x, time, prompt)[0])
            else:
                both = torch.cat([torch.zeros_like(prompt), prompt])
                v = guided(*own(torch.cat([x, x]), torch.cat([time, time]), both)[0].chunk(2))
            x = times.step(v, t, x)[0]
    return x


@dataclass
class Client:
    """One request as its server's loop sees it."""

    job: Job
    request: Request
    times: Any
    x: Tensor
    step: int = 0
    outputs: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, server: Server, job: Job) -> Client:
        times = noise_scheduler(job.steps)
        request = server.request(job.steps, noise_scheduler=times, guidance=job.guidance, **job.config())
        return cls(job, request, times, job.noise())

    @property
    def done(self) -> bool:
        return self.step == self.job.steps

    def advance(self, v: Tensor) -> None:
        self.x = self.times.step(v, self.times.timesteps[self.step], self.x)[0]
        self.step += 1


@torch.no_grad()
def step_all(server: Server, denoiser: nn.Module, clients: list[Client]) -> None:
    """One batch: every client takes a step. Rows come pass after pass."""
    times = [client.times.timesteps[client.step].expand(client.job.rows) for client in clients]
    prompts = [client.job.prompt() for client in clients]
    two = [client.job.guidance is not None for client in clients]
    batched = [i for i, client in enumerate(clients) if client.job.guidance == "batched"]
    apart = [i for i, client in enumerate(clients) if client.job.guidance == "apart"]
    rows = [client.job.rows for client in clients]
    with server.batch([(client.request, client.step) for client in clients], rows):
        first = denoiser(
            torch.cat([client.x for client in clients] + [clients[i].x for i in batched]),
            torch.cat(times + [times[i] for i in batched]),
            torch.cat(
                [torch.zeros_like(p) if twice else p for p, twice in zip(prompts, two, strict=True)]
                + [prompts[i] for i in batched]
            ),
        )[0].split([*rows, *(rows[i] for i in batched)])
        second = dict(zip(batched, first[len(clients) :], strict=True))
        if apart:
            seconds = denoiser(
                torch.cat([clients[i].x for i in apart]),
                torch.cat([times[i] for i in apart]),
                torch.cat([prompts[i] for i in apart]),
            )[0].split([rows[i] for i in apart])
            second |= dict(zip(apart, seconds, strict=True))
    for i, client in enumerate(clients):
        client.advance(guided(first[i], second[i]) if i in second else first[i])
