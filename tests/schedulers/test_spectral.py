"""SeaCache's filter is the one that Diffusers has, and what follows from it."""

from __future__ import annotations

import math

import pytest
import torch

from diffcache.schedulers.spectral import SpectralDrift, filtered

SIGMAS = (0.999, 0.7, 0.3, 0.02)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_filter_is_that_of_diffusers(sigma: float) -> None:
    sea_cache = pytest.importorskip("diffusers.hooks.sea_cache")
    video = torch.randn(4, 3, 8, 6, generator=torch.Generator().manual_seed(1))
    theirs = sea_cache._apply_sea_filter(video.movedim(0, -1), sigma, 3.0).movedim(-1, 0)
    mine = filtered(video[None], math.atan2(sigma, 1 - sigma), 3.0)[0]
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_tokens_are_filtered_as_their_picture() -> None:
    picture = torch.randn(2, 5, 4, 4)
    tokens = picture.flatten(2).transpose(1, 2)
    torch.testing.assert_close(filtered(tokens, 1.0, 3.0), filtered(picture, 1.0, 3.0))


def test_much_noise_leaves_the_mean_and_little_leaves_everything() -> None:
    picture = torch.randn(1, 1, 8, 8) + 1
    hidden = filtered(picture, math.pi / 2 - 1e-4, 3.0)
    assert hidden.std() < 0.05 * hidden.mean().abs()
    torch.testing.assert_close(filtered(picture, 1e-6, 3.0), picture, rtol=1e-3, atol=1e-3)


def test_the_signal_compares_with_the_tick_before_whoever_decided() -> None:
    first, second, third = torch.randn(3, 1, 2, 4, 4)
    signal = SpectralDrift([1.0, 0.8, 0.5], 3.0)
    assert signal.measure([first]) is None
    signal.arrived([first])
    signal.arrived([second])  # a guard decided: nothing was measured
    expected = filtered(third, 0.5, 3.0), filtered(second, 0.8, 3.0)
    change = (expected[0] - expected[1]).abs().mean() / expected[1].abs().mean()
    found = signal.measure([third])
    assert found is not None
    torch.testing.assert_close(found[0], change)


def test_where_the_noise_level_is_unknown_there_is_no_signal() -> None:
    signal = SpectralDrift([None, 0.5], 3.0)
    latent = torch.randn(1, 2, 4, 4)
    signal.arrived([latent])
    assert signal.measure([latent]) is None
