"""Foreground masks: the salient part of a latent, laid over the tokens."""

from __future__ import annotations

import pytest
import torch

from diffcache.profiling.calibrating.foreground import on_tokens, otsu, saliency
from diffcache.schedulers.errors import ConfigError


def test_the_salient_part_of_a_latent_differs_from_its_median() -> None:
    latent = torch.zeros(1, 3, 8, 8)
    latent[:, 1, 2:4, 4:8] = 2.0
    field = saliency(latent)
    assert field.shape == (1, 8, 8)
    foreground = otsu(on_tokens(field, 16))
    assert foreground.reshape(4, 4).nonzero().tolist() == [[1, 2], [1, 3]]
    packed = latent.flatten(2).mT
    assert torch.equal(saliency(packed).reshape(1, 8, 8), field)


def test_a_field_is_laid_over_the_tokens_of_pictures_and_videos() -> None:
    assert on_tokens(torch.ones(2, 32, 64), 8).shape == (2, 8)
    assert on_tokens(torch.ones(2, 9, 32, 32), 5 * 16).shape == (2, 80)
    with pytest.raises(ConfigError, match="cannot be laid over 7 tokens"):
        on_tokens(torch.ones(2, 32, 32), 7)
