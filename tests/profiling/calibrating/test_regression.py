"""The affine fit: on numbers that can be checked by hand, inside a denoiser, and in a sequential closed loop."""

from __future__ import annotations

import pytest
import torch
from support.searches.flux_calls import FLUX, flux_calls

from diffcache import UniformConfig, accelerate, report
from diffcache.engine.observers import observed
from diffcache.profiling.calibrating.corrections import with_corrections
from diffcache.profiling.calibrating.regression import (
    SHRINKAGE,
    Regression,
    SequentialRegression,
    ShadowRegression,
)
from diffcache.profiling.recording.calling import accelerated
from diffcache.profiling.recording.pictures import rewound
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.steps import Step

STEPS = 8


def test_the_affine_fit_finds_the_true_coefficients_shrunk_by_the_number_of_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(64, 3, 8, 8, generator=generator)
    gain, shift = torch.tensor([0.9, 1.0, 1.2]), torch.tensor([0.1, 0.0, -0.3])
    y = u * gain[:, None, None] + shift[:, None, None]
    fit = ShadowRegression()
    fit.predicted("net", Step(2, 4, "0"), [u, y], [y, u], [y, u])
    found = fit.coefficients(4)
    trust = 64 / (64 + SHRINKAGE)
    torch.testing.assert_close(found["net/0/gain"][2], 1 + trust * (gain - 1), atol=1e-4, rtol=0)
    torch.testing.assert_close(found["net/0/shift"][2], trust * shift, atol=1e-4, rtol=0)
    torch.testing.assert_close(found["net/0/1/gain"][2], 1 + trust * (1 / gain - 1), atol=1e-4, rtol=0)
    assert torch.equal(found["net/0/gain"][1], torch.ones(3))


def test_inside_a_denoiser_features_are_fitted_not_streams() -> None:
    generator = torch.Generator().manual_seed(0)
    stream, held = (torch.randn(64, 5, 4, generator=generator) for _ in range(2))
    true = 1.5 * held
    fit = ShadowRegression()
    step = Step(1, 2, "0", site="blocks.1", kind="block")
    fit.predicted("net", step, [stream + held], [stream + true], [true])
    trust = 64 / (64 + SHRINKAGE)
    found = fit.coefficients(2)["net.blocks.1/0/gain"][1]
    torch.testing.assert_close(found, torch.full((4,), 1 + trust * 0.5), atol=1e-3, rtol=0)


@pytest.mark.parametrize("samples", [1, 8, 1000])
def test_a_fit_is_never_worse_than_none_on_its_own_samples(samples: int) -> None:
    """The error is convex, and the shrunk fit lies between no correction and the least squares."""
    torch.manual_seed(0)
    u = torch.randn(samples, 16, 5, dtype=torch.float64) + torch.arange(5)
    y = u + torch.randn_like(u) * torch.rand(5)
    regression = Regression()
    regression.add(u, y)
    gain, shift = regression.fit()
    before, after = ((guess - y).square().mean((0, 1)) for guess in (u, gain * u + shift))
    assert (after <= before * (1 + 1e-12)).all()


def test_each_tick_is_fitted_on_a_run_with_the_earlier_corrections() -> None:
    """So the run of the fit is the run that its corrections give."""
    pipe, call = FLUX.build(), flux_calls(STEPS, 1)[0]
    accelerate(pipe, UniformConfig(interval=3))
    pipe(**rewound(call))
    schedule, fit = report(pipe).to_schedule(), SequentialRegression()
    with accelerated(pipe, ReplayConfig(schedule=schedule)), observed(fit):
        fitted = pipe(**rewound(call))[0]
    corrected = with_corrections(schedule, fit.coefficients(STEPS))
    accelerate(pipe, corrected)
    torch.testing.assert_close(
        torch.as_tensor(pipe(**rewound(call))[0]), torch.as_tensor(fitted), atol=1e-4, rtol=0
    )
    accelerate(pipe, schedule)
    assert (torch.as_tensor(pipe(**rewound(call))[0]) - torch.as_tensor(fitted)).abs().max() > 1e-3
