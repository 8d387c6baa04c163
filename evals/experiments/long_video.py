"""The causal testbed over ten times the length that it was trained on: quality over time, by rollout policy.

All policies get the same noise, so videos are compared one by one. "Late" is the second half of a video.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from diffcache.evals.harness.intervals import mean_with_interval
from diffcache.evals.metrics.flicker import temporal_flickering
from diffcache.evals.metrics.motion import motion
from diffcache.evals.testbeds import causal, procedural, zoo
from diffcache.evals.testbeds.bouncing import bouncing_clips
from diffcache.evals.testbeds.shape_classifier import ShapeColourClassifier
from diffcache.rollouts.policies import DeepSink, Participative, Rolling, RolloutPolicy, Sink
from diffcache.rollouts.video import Rollout

WINDOW = causal.TRAINED_FRAMES
PARTS = 10
FRAMES = PARTS * WINDOW
"""Latent frames of a video."""
STEPS = 4
GUIDANCE = 2.5


@dataclass(frozen=True)
class RandomChoice(Participative):
    """The control of `Participative`: it keeps as many tokens, and chooses them at random, anew in each layer and at each choice."""

    def relevance(self, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        generator = torch.Generator().manual_seed(int(keys.double().abs().sum() * 1e6))
        return torch.rand(keys.shape[0], 1, keys.shape[2], generator=generator)


CHOOSING = {"window": WINDOW, "sink": 4, "budget": 7, "recent": 2}
"""As published, where the window has 21 frames: a sink of 10, a budget of 16 and 4 recent ones."""
CHOOSING_MORE = {"window": WINDOW, "sink": 1, "budget": 4, "recent": 1}
"""Half of what is left is chosen, instead of a seventh."""
POLICIES: dict[str, RolloutPolicy] = {
    "rolling": Rolling(window=WINDOW),
    "sink": Sink(window=WINDOW, sink=2),
    "sink-not-rephased": Sink(window=WINDOW, sink=2, rephase=False),
    "deep-sink": DeepSink(window=WINDOW, sink=4),
    "deep-sink-not-rephased": DeepSink(window=WINDOW, sink=4, rephase=False),
    "participative": Participative(**CHOOSING),  # type: ignore[arg-type]
    "random-choice": RandomChoice(**CHOOSING),  # type: ignore[arg-type]
    "participative-4": Participative(**CHOOSING_MORE),  # type: ignore[arg-type]
    "random-choice-4": RandomChoice(**CHOOSING_MORE),  # type: ignore[arg-type]
}
CONTROLS = ("sink-not-rephased", "deep-sink-not-rephased", "random-choice", "random-choice-4")
METRICS = ("accuracy", "motion", "flicker")


REAL = "real-clips"


def measured(name: str, samples: int) -> dict[str, Any]:
    """A policy's row, or that of real clips.

    Each metric has its means and their bootstrap intervals by tenth of the video, and its "late" values video by video.
    """
    if name == REAL:
        real = bouncing_clips(samples, 1, 32, PARTS * 2 * WINDOW)
        return {"policy": name, **quality(real.pixels.transpose(1, 2), real.labels)}
    prompts = zoo.prompts("wan", samples, "heldout")
    labels = torch.tensor([procedural.label_of(prompt) for prompt in prompts])
    clock = Clock()
    with chunks_noted(clock.note):
        videos = rolled_out(causal.load(), prompts, POLICIES[name])
    return {"policy": name, **quality(videos, labels), **clock.figures()}


def rolled_out(pipe: Any, prompts: list[str], policy: RolloutPolicy, steps: int = STEPS) -> Tensor:
    """Videos [N, F, 3, 32, 32] of ten times the trained length."""
    videos: Tensor = pipe(
        prompts,
        num_frames=2 * (FRAMES - 1) + 1,
        policy=policy,
        generator=torch.Generator().manual_seed(0),
        **causal.call(steps, GUIDANCE),
    ).frames
    return videos


def chunks_noted(note: Callable[[Rollout], None]) -> Any:
    """Inside, a function is told of each chunk that a rollout has written."""
    write = Rollout.write

    def noted(video: Rollout, *args: Any, **kwargs: Any) -> Any:
        output = write(video, *args, **kwargs)
        note(video)
        return output

    return patch.object(Rollout, "write", noted)


class Clock:
    """Notes the bytes after each chunk, and the processor time since the one before."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.times: list[float] = []

    def note(self, video: Rollout) -> None:
        """A chunk has been written."""
        self.bytes.append(video.cache_bytes)
        self.times.append(process_time())

    def figures(self) -> dict[str, Any]:
        """Bytes and seconds per chunk, means over each tenth of the video; its first chunk, which is learned from, has no time."""
        spent = torch.tensor(self.times).diff()
        seconds = [float(part.mean()) for part in spent.tensor_split(PARTS)]
        sizes = [max(self.bytes[i : i + WINDOW]) for i in range(0, len(self.bytes), WINDOW)]
        return {"bytes": sizes, "seconds": [round(value, 4) for value in seconds]}


def quality(videos: Tensor, labels: Tensor) -> dict[str, Any]:
    """Of videos [N, F, 3, H, W], by metric: "mean", "low" and "high" by tenth, and the videos' "late" values."""
    classifier = ShapeColourClassifier.load()
    tenths: dict[str, list[Tensor]] = {metric: [] for metric in METRICS}
    for part in videos.tensor_split(PARTS, 1):
        seen = classifier.predict(part.flatten(0, 1)).view(part.shape[:2])
        tenths["accuracy"].append((seen == labels[:, None]).float().mean(1))
        tenths["motion"].append(motion(part))
        tenths["flicker"].append(temporal_flickering(part))
    return {metric: _over_time(torch.stack(values, 1)) for metric, values in tenths.items()}


def _over_time(values: Tensor) -> dict[str, list[float]]:
    """Of a metric [N, tenths]."""
    ends = [mean_with_interval(column) for column in values.T]
    series = {
        "mean": values.mean(0).tolist(),
        "low": [low for _, low, _ in ends],
        "high": [high for *_, high in ends],
        "late": values[:, PARTS // 2 :].mean(1).tolist(),
    }
    return {name: [round(value, 4) for value in found] for name, found in series.items()}
