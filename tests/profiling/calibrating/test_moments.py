"""The affine fit, on numbers that can be checked by hand, and inside a denoiser."""

from __future__ import annotations

import torch

from diffcache.profiling.calibrating.moments import SHRINKAGE, Moments
from diffcache.schedulers.steps import Step


def test_the_affine_fit_finds_what_was_put_in_and_trusts_many_samples_only() -> None:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(64, 3, 8, 8, generator=generator)
    gain, shift = torch.tensor([0.9, 1.0, 1.2]), torch.tensor([0.1, 0.0, -0.3])
    y = u * gain[:, None, None] + shift[:, None, None]
    moments = Moments()
    moments.predicted("net", Step(2, 4, "0"), [u, y], [y, u], [y, u])
    found = moments.coefficients(4)
    trust = 64 / (64 + SHRINKAGE)
    torch.testing.assert_close(found["net/0/gain"][2], 1 + trust * (gain - 1), atol=1e-4, rtol=0)
    torch.testing.assert_close(found["net/0/shift"][2], trust * shift, atol=1e-4, rtol=0)
    torch.testing.assert_close(found["net/0/1/gain"][2], 1 + trust * (1 / gain - 1), atol=1e-4, rtol=0)
    assert torch.equal(found["net/0/gain"][1], torch.ones(3))


def test_inside_a_denoiser_features_are_fitted_not_the_streams_that_they_are_added_to() -> None:
    generator = torch.Generator().manual_seed(0)
    stream, held = (torch.randn(64, 5, 4, generator=generator) for _ in range(2))
    true = 1.5 * held
    moments = Moments()
    step = Step(1, 2, "0", site="blocks.1", kind="block")
    moments.predicted("net", step, [stream + held], [stream + true], [true])
    trust = 64 / (64 + SHRINKAGE)
    found = moments.coefficients(2)["net.blocks.1/0/gain"][1]
    torch.testing.assert_close(found, torch.full((4,), 1 + trust * 0.5), atol=1e-3, rtol=0)
