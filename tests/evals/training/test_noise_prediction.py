"""The loss of noise and variance, against closed forms and against sampled steps."""

from __future__ import annotations

import pytest
import torch
from diffusers import DDPMScheduler

from diffcache.evals.training.noise_prediction import (
    noise_and_variance_loss,
    noise_loss,
    noisy,
    sample_loss,
    step_divergence,
)

DDPM = DDPMScheduler(beta_schedule="linear", clip_sample=False)
ALPHAS = DDPM.alphas_cumprod


@pytest.mark.parametrize("t", [1, 30, 500, 999])
def test_the_true_step_diverges_from_nothing(t: int) -> None:
    zero = torch.zeros(2, 3, 4)
    divergence = step_divergence(zero, zero - 1, ALPHAS, torch.tensor([t, t]))
    torch.testing.assert_close(divergence, zero, atol=1e-5, rtol=0)


@pytest.mark.parametrize("t", [30, 500])
def test_the_divergence_is_that_of_the_steps_of_ddpm(t: int) -> None:
    generator = torch.Generator().manual_seed(0)
    clean, noise, wrong = torch.randn(3, 1, 1000, generator=generator, dtype=torch.float64)
    sample = ALPHAS[t].double().sqrt() * clean + (1 - ALPHAS[t].double()).sqrt() * noise

    def mean(predicted: torch.Tensor) -> torch.Tensor:
        clean_then = (sample - (1 - ALPHAS[t]).sqrt() * predicted) / ALPHAS[t].sqrt()
        before, beta = ALPHAS[t - 1], DDPM.betas[t]
        return (before.sqrt() * beta * clean_then + (1 - beta).sqrt() * (1 - before) * sample) / (
            1 - ALPHAS[t]
        )

    own = DDPM.betas[t] * (1 - ALPHAS[t - 1]) / (1 - ALPHAS[t])
    beta = DDPM.betas[t]
    true = torch.distributions.Normal(mean(noise), own.sqrt().double())
    predicted = torch.distributions.Normal(mean(noise + wrong), beta.sqrt().double())
    expected = torch.distributions.kl_divergence(true, predicted)
    found = step_divergence(wrong, torch.ones_like(wrong), ALPHAS.double(), torch.tensor([t]))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-7)


def test_the_weight_is_that_of_the_sample_up_to_ten() -> None:
    t = torch.tensor([0, 300, 999])
    error = torch.ones(3, 2, 4)
    weights = [1 / float(ALPHAS[0]), 1 / float(ALPHAS[300]), 10.0]
    assert float(noise_loss(error, error * 0, ALPHAS, t)) == pytest.approx(sum(weights) / 3, rel=1e-5)


def test_the_weight_of_a_predicted_sample_is_its_signal_to_noise_ratio_from_one_to_ten() -> None:
    t = torch.tensor([0, 150, 999])
    error = torch.ones(3, 2, 4)
    ratio = float(ALPHAS[150] / (1 - ALPHAS[150]))
    assert 1 < ratio < 10
    assert float(sample_loss(error, error * 0, ALPHAS, t)) == pytest.approx((10 + ratio + 1) / 3, rel=1e-5)


def test_the_variance_does_not_train_the_noise() -> None:
    noise, t = torch.randn(2, 3, 4), torch.tensor([5, 600])
    output = torch.randn(2, 6, 4, requires_grad=True)
    noise_and_variance_loss(output, noise, ALPHAS, t).backward()
    alone = output.detach()[:, :3].clone().requires_grad_()
    noise_loss(alone, noise, ALPHAS, t).backward()
    assert output.grad is not None
    torch.testing.assert_close(output.grad[:, :3], alone.grad)
    assert bool((output.grad[:, 3:] != 0).all())


def test_noisy_samples_are_those_of_the_noise_scheduler() -> None:
    clean, noise, t = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.tensor([10, 900])
    torch.testing.assert_close(noisy(clean, noise, ALPHAS, t), DDPM.add_noise(clean, noise, t))
