"""Temporal flickering."""

import torch

from diffcache.evals.metrics.flicker import temporal_flickering


def test_flickering_is_the_mean_change() -> None:
    video = torch.tensor([0.0, 0.5, 0.75]).view(1, 3, 1, 1, 1).expand(1, 3, 3, 2, 2)
    assert temporal_flickering(video).tolist() == [1 - (0.5 + 0.25) / 2]
