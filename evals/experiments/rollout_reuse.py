"""Ticks reused inside a rollout of ten times the trained length: each chunk is a run of its own (as in FlowCache)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from diffcache.api import accelerate, report, restore
from diffcache.evals.experiments.long_video import POLICIES, chunks_noted, quality, rolled_out
from diffcache.evals.testbeds import causal, procedural, zoo
from diffcache.rollouts.video import Rollout

STEPS = 8
POLICY = "deep-sink"


@dataclass(frozen=True)
class Way:
    """How a chunk is made.

    Attributes:
        name: of the way.
        steps: ticks of a chunk.
        method: that is attached; none computes every tick.
        options: of the method.
    """

    name: str
    steps: int = STEPS
    method: str = ""
    options: dict[str, Any] = field(default_factory=dict)


WAYS = (
    Way("every tick"),
    Way("half as many steps (control)", STEPS // 2),
    Way("uniform, interval=2", method="uniform", options={"interval": 2, "warmup_steps": 1}),
    Way("trajectory, speedup=2", method="trajectory", options={"speedup": 2.0}),
    Way("easycache, threshold=0.3", method="easycache", options={"threshold": 0.3}),
)


def measured(samples: int) -> Iterator[dict[str, Any]]:
    """A row for each way: quality along the video, and the share of ticks that were computed, by tenth of the video."""
    prompts = zoo.prompts("wan", samples, "heldout")
    labels = torch.tensor([procedural.label_of(prompt) for prompt in prompts])
    for way in WAYS:
        pipe, shares = causal.load(), list[float]()
        if way.method:
            accelerate(pipe.transformer, way.method, **way.options)

        def note(video: Rollout, way: Way = way, shares: list[float] = shares) -> None:
            computed = report(video.denoiser).compute_fraction if way.method else 1.0
            shares.append(computed * way.steps / STEPS)

        with chunks_noted(note):
            videos = rolled_out(pipe, prompts, POLICIES[POLICY], way.steps)
        if way.method:
            restore(pipe.transformer)
        tenths = [round(float(part.mean()), 3) for part in torch.tensor(shares).tensor_split(10)]
        yield {"way": way.name, "computed": tenths, **quality(videos, labels)}
