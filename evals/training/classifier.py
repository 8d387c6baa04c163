"""Training of the shape and colour classifier."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from diffcache.evals.testbeds import procedural
from diffcache.evals.testbeds.shape_classifier import ShapeColourClassifier
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

_BATCH = 64


def draw(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pictures [n, 3, 64, 64] and labels [n]; the last third are frames of clips, enlarged."""
    generator = torch.Generator().manual_seed(seed)
    scenes = procedural.sample_scenes(n - n // 3, generator)
    moving = procedural.moving_scenes(n // 3, generator)
    centre = torch.rand(n // 3, 2, 2, generator=generator) - 0.5
    frames = procedural.render(replace(moving, centre=centre), 32)
    frames = functional.interpolate(frames, scale_factor=2.0, mode="bilinear", align_corners=False)
    return torch.cat([procedural.render(scenes, 64), frames]), torch.cat([scenes.labels, moving.labels])


def train(training: Training) -> Progress:
    """Trains on fresh pictures, with a little noise and a random brightness, and saves to `training.out`."""
    torch.manual_seed(training.seed)
    device = training.device
    model = ShapeColourClassifier().to(device)

    def loss(generator: torch.Generator) -> Tensor:
        pixels, labels = draw(_BATCH, int(generator.initial_seed() % 2**62))
        noise = torch.randn(pixels.shape, generator=generator, device=device) * 0.03
        gain = 0.9 + 0.2 * torch.rand(_BATCH, 1, 1, 1, generator=generator, device=device)
        scores = model.logits((pixels.to(device) * gain + noise).clamp(0, 1))
        return functional.cross_entropy(scores, labels.to(device), label_smoothing=0.05)

    optimiser = Optimiser(model, lambda name, p: p.ndim >= 2 and min(p.shape[:2]) >= 16)
    progress = fit(model, loss, optimiser, Pace(lr=3e-3), training)
    model.save(training.out)
    return progress
