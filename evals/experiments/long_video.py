"""The causal testbed over ten times the length that it was trained on: quality over time, by rollout policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import process_time
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

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
    """The control of `Participative`: it keeps as many tokens, and chooses them at random."""

    def relevance(self, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        generator = torch.Generator().manual_seed(keys.shape[2])
        return torch.rand(keys.shape[0], 1, keys.shape[2], generator=generator)


CHOOSING = {"window": WINDOW, "sink": 4, "budget": 7, "recent": 2}
POLICIES: dict[str, RolloutPolicy] = {
    "rolling": Rolling(window=WINDOW),
    "deep-sink": DeepSink(window=WINDOW, sink=4),
    "deep-sink, not re-phased (control)": DeepSink(window=WINDOW, sink=4, rephase=False),
    "participative": Participative(**CHOOSING),  # type: ignore[arg-type]
    "random choice (control)": RandomChoice(**CHOOSING),  # type: ignore[arg-type]
    "sink": Sink(window=WINDOW, sink=2),
}


def measured(samples: int) -> Iterator[dict[str, Any]]:
    """A row for real clips, and one for each policy: accuracy, motion and flicker of each tenth of the video."""
    prompts = zoo.prompts("wan", samples, "heldout")
    labels = torch.tensor([procedural.label_of(prompt) for prompt in prompts])
    real = bouncing_clips(samples, 1, 32, PARTS * 2 * WINDOW)
    yield {"policy": "real clips", **_quality(real.pixels.transpose(1, 2), real.labels)}
    pipe = causal.load()
    for name, policy in POLICIES.items():
        clock = Clock()
        with clock.listening():
            videos = pipe(
                prompts,
                num_frames=2 * (FRAMES - 1) + 1,
                policy=policy,
                generator=torch.Generator().manual_seed(0),
                **causal.call(STEPS, GUIDANCE),
            ).frames
        yield {"policy": name, **_quality(videos, labels), **clock.figures()}


class Clock:
    """Notes the bytes after each chunk, and the processor time since the one before."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.times: list[float] = []

    def listening(self) -> Any:
        """Inside, rollouts are listened to."""
        write = Rollout.write

        def noted(video: Rollout, *args: Any, **kwargs: Any) -> Any:
            output = write(video, *args, **kwargs)
            self.bytes.append(video.cache_bytes)
            self.times.append(process_time())
            return output

        return patch.object(Rollout, "write", noted)

    def figures(self) -> dict[str, Any]:
        """Bytes and seconds per chunk, means over each tenth of the video; its first chunk, which is learned from, has no time."""
        spent = torch.tensor(self.times).diff()
        seconds = [float(part.mean()) for part in spent.tensor_split(PARTS)]
        sizes = [max(self.bytes[i : i + WINDOW]) for i in range(0, len(self.bytes), WINDOW)]
        return {"bytes": sizes, "seconds": [round(value, 4) for value in seconds]}


def _quality(videos: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """By tenth of a video [N, F, 3, H, W]."""
    classifier = ShapeColourClassifier.load()
    rows: dict[str, list[float]] = {"accuracy": [], "motion": [], "flicker": []}
    for part in videos.tensor_split(PARTS, 1):
        seen = classifier.predict(part.flatten(0, 1)).view(part.shape[:2])
        rows["accuracy"].append(round(float((seen == labels[:, None]).float().mean()), 3))
        rows["motion"].append(round(float(motion(part).mean()), 4))
        rows["flicker"].append(round(float(temporal_flickering(part).mean()), 4))
    return rows
