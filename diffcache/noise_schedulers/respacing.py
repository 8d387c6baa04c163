"""Respacing: gives a noise scheduler other noise levels for the steps of a run that is about to begin."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffcache.schedulers.errors import ScheduleError


def stretched(sigmas: Sequence[float], final: float, shares: Sequence[float]) -> list[float]:
    """Noise levels at which step s covers `shares[s]` of its nominal part of what is left (ERTACache, arXiv 2508.21091).

    With h_s = sigma_s - sigma_{s+1} and actual levels g: g_{s+1} = g_s - shares[s] h_s (g_s - final) / (sigma_s - final).
    What a step leaves undone is spread over all later ones, and the last one, whose share counts as 1, ends at `final`.

    Args:
        sigmas: nominal levels, falling, one for each step.
        final: the level at which the run ends.
        shares: of each step, in (0, 1].

    Returns:
        As many levels; exactly the nominal ones where every share is 1.
    """
    if all(share == 1 for share in shares[:-1]):
        return list(sigmas)
    levels = [sigmas[0]]
    for now, after, share in zip(sigmas, sigmas[1:], shares, strict=False):
        here = levels[-1]
        levels.append(here - share * (now - after) * (here - final) / (now - final))
    return levels


def respace(noise_scheduler: Any, sigmas: Sequence[float]) -> None:
    """Puts other noise levels in place of those that `set_timesteps` has just made; the final one stays.

    Raises:
        ScheduleError: the noise scheduler keeps no noise levels, or its timesteps cannot follow them.
    """
    levels, timesteps = getattr(noise_scheduler, "sigmas", None), noise_scheduler.timesteps
    name = type(noise_scheduler).__name__
    if not isinstance(levels, Tensor) or len(levels) != len(timesteps) + 1 or len(sigmas) != len(timesteps):
        raise ScheduleError(
            f"{name} cannot be respaced: it does not keep one noise level for each step of the run; leave respace off."
        )
    times = _timesteps(noise_scheduler, levels[:-1], list(sigmas))
    new = torch.tensor(sigmas, dtype=torch.float64).to(levels)
    noise_scheduler.sigmas = torch.cat([new, levels[-1:]])
    noise_scheduler.timesteps = times.to(timesteps)


def _timesteps(noise_scheduler: Any, levels: Tensor, sigmas: list[float]) -> Tensor:
    """The timesteps of noise levels: proportional to them in flow matching, else as the noise scheduler interpolates."""
    steps = noise_scheduler.config.num_train_timesteps
    timesteps = noise_scheduler.timesteps
    if torch.allclose(timesteps.double().cpu(), levels.double().cpu() * steps, atol=1.0):
        return torch.tensor([sigma * steps for sigma in sigmas], dtype=torch.float64)
    if hasattr(noise_scheduler, "_sigma_to_t") and hasattr(noise_scheduler, "alphas_cumprod"):
        alphas = noise_scheduler.alphas_cumprod.double().cpu().numpy()
        log_sigmas = np.log(((1 - alphas) / alphas) ** 0.5)
        times = np.array([float(noise_scheduler._sigma_to_t(np.array(s), log_sigmas)) for s in sigmas])
        found: Tensor = torch.from_numpy(times if timesteps.is_floating_point() else times.round())
        return found
    raise ScheduleError(
        f"{type(noise_scheduler).__name__} cannot be respaced: its timesteps do not follow noise levels; leave respace off."
    )
