"""Losses of denoisers that predict the sample, or the noise, or beside it the variance of a step (Nichol and Dhariwal 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST_WEIGHT = 10.0


def noisy(clean: Tensor, noise: Tensor, alphas_cumprod: Tensor, t: Tensor) -> Tensor:
    """sqrt(a) * clean + sqrt(1 - a) * noise, at timesteps t [n]."""
    alpha = _at(alphas_cumprod, t, clean)
    return alpha.sqrt() * clean + (1 - alpha).sqrt() * noise


def noise_loss(predicted: Tensor, noise: Tensor, alphas_cumprod: Tensor, t: Tensor) -> Tensor:
    """Squared error of the predicted noise, weighed by 1 / a up to 10.

    Without the weight little is learnt where there is much noise, and colours drift: there an error of the noise
    becomes sqrt((1 - a) / a) times that in the sample.
    """
    weight = (1 / _at(alphas_cumprod, t, noise)).clamp_max(_LARGEST_WEIGHT)
    return (weight * (predicted - noise).square()).mean()


def sample_loss(predicted: Tensor, clean: Tensor, alphas_cumprod: Tensor, t: Tensor) -> Tensor:
    """Squared error of the predicted clean sample, weighed by the signal-to-noise ratio a / (1 - a) between 1 and 10.

    Without the weight little is learnt where there is little noise, and fine detail is lost. The lower bound is that of
    Salimans and Ho 2022.
    """
    alpha = _at(alphas_cumprod, t, clean)
    weight = (alpha / (1 - alpha)).clamp(1.0, _LARGEST_WEIGHT)
    return (weight * (predicted - clean).square()).mean()


def noise_and_variance_loss(output: Tensor, noise: Tensor, alphas_cumprod: Tensor, t: Tensor) -> Tensor:
    """`noise_loss` of the first half of the channels, plus the mean `step_divergence`, from which the second half learns.

    Args:
        output: noise and variance [n, 2 * c, ...]; see `step_divergence` for what the second half means.
        noise: [n, c, ...].
        alphas_cumprod: of the noise scheduler, [timesteps].
        t: timesteps [n].
    """
    predicted, fraction = output.chunk(2, dim=1)
    divergence = step_divergence(predicted.detach() - noise, fraction, alphas_cumprod, t).mean()
    return noise_loss(predicted, noise, alphas_cumprod, t) + divergence


def step_divergence(error: Tensor, fraction: Tensor, alphas_cumprod: Tensor, t: Tensor) -> Tensor:
    """Kullback-Leibler divergence, in nats per element, of a step's true posterior from the predicted one.

    Args:
        error: of the predicted noise [n, c, ...].
        fraction: -1 for the posterior's own variance, 1 for beta; between them the logarithm is interpolated.
        alphas_cumprod: of the noise scheduler, [timesteps].
        t: timesteps [n].
    """
    before = torch.cat([torch.ones_like(alphas_cumprod[:1]), alphas_cumprod[:-1]])
    betas = 1 - alphas_cumprod / before
    posterior = betas * (1 - before) / (1 - alphas_cumprod)
    posterior[0] = posterior[1]  # the last step has none; Nichol and Dhariwal take its neighbour's
    beta, own = _at(betas, t, error), _at(posterior, t, error).log()
    largest = torch.maximum(beta.log(), own)
    log_variance = own + (fraction + 1) / 2 * (largest - own)
    mean_error = beta / ((1 - _at(alphas_cumprod, t, error)) * (1 - beta)).sqrt() * error
    ratio = (own - log_variance).exp() + mean_error.square() * (-log_variance).exp()
    return 0.5 * (log_variance - own - 1 + ratio)


def _at(table: Tensor, t: Tensor, like: Tensor) -> Tensor:
    return table[t].view(-1, *[1] * (like.ndim - 1))
