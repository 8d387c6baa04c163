"""Where noise schedulers differ from each other. A noise scheduler that needs a special case gets it here."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

NOISE_OPTIONS = ("eta", "s_churn")
"""Options of a noise scheduler's `step` that make it add noise, unless they are 0."""


def adds_noise(step_options: Mapping[str, Any]) -> bool:
    """Whether a `step` that is called with these keyword arguments was asked to add noise."""
    return any(step_options.get(option) for option in NOISE_OPTIONS)


def timesteps_of(noise_scheduler: Any) -> Tensor | None:
    """Its list of timesteps, [n]; None where it has none."""
    timesteps = getattr(noise_scheduler, "timesteps", None)
    return timesteps if isinstance(timesteps, Tensor) and timesteps.ndim == 1 else None


def sigmas_of(noise_scheduler: Any) -> list[float] | None:
    """The noise level at each of its timesteps. Reads the device.

    None where it keeps neither sigmas nor alphas, and where a level is not finite (zero terminal SNR begins at infinity).
    """
    timesteps = timesteps_of(noise_scheduler)
    if timesteps is None:
        return None
    levels = _kept_levels(noise_scheduler, len(timesteps)) or _levels_of_alphas(noise_scheduler, timesteps)
    return levels if levels is not None and all(map(math.isfinite, levels)) else None


def training_times_of(noise_scheduler: Any) -> list[float] | None:
    """Its timesteps as fractions of its training steps; None where it does not say how many it was trained with."""
    timesteps = timesteps_of(noise_scheduler)
    steps = getattr(noise_scheduler.config, "num_train_timesteps", None)
    return [float(t) / steps for t in timesteps.tolist()] if timesteps is not None and steps else None


def index_in_list(times: Iterable[object], noise_scheduler: Any) -> int | None:
    """The index of the first of these times that is a view into the noise scheduler's list of timesteps.

    None where none is. Reads nothing: it compares where the tensors lie in memory.
    """
    timesteps = getattr(noise_scheduler, "timesteps", None)
    if not isinstance(timesteps, Tensor) or timesteps.ndim != 1:
        return None
    storage = timesteps.untyped_storage().data_ptr()
    for time in times:
        if not isinstance(time, Tensor) or time.untyped_storage().data_ptr() != storage:
            continue
        if time.numel() <= 1 or not any(time.stride()):  # one time, or one that is expanded over the batch
            return int(time.storage_offset() - timesteps.storage_offset())
    return None


def answer_of(noise_scheduler: Any, sigma: float) -> float:
    """By how much the best denoiser's output changes with its input, for data of variance one, at a noise level.

    A velocity does not change. A predicted noise takes over sigma / sqrt(1 + sigma^2) of the change, a predicted sample
    1 / sqrt(1 + sigma^2). What EDM calls "epsilon" is what its preconditioning leaves over, and does not change either.
    """
    if not hasattr(noise_scheduler, "alphas_cumprod"):
        return 0.0
    kept = {"epsilon": sigma, "sample": 1.0}.get(noise_scheduler.config.get("prediction_type"), 0.0)
    return kept / math.hypot(1, sigma)


def _kept_levels(noise_scheduler: Any, count: int) -> list[float] | None:
    """The levels that it keeps in `sigmas`."""
    sigmas = getattr(noise_scheduler, "sigmas", None)
    if not isinstance(sigmas, Tensor) or sigmas.ndim != 1 or len(sigmas) < count:
        return None
    levels: list[float] = sigmas[:count].tolist()
    between = getattr(noise_scheduler, "sigmas_interpol", None)
    if isinstance(between, Tensor):  # KDPM2 evaluates every second time between two levels
        levels[1::2] = between[:count].tolist()[1::2]
    return levels


def _levels_of_alphas(noise_scheduler: Any, timesteps: Tensor) -> list[float] | None:
    """The levels that follow from the training's alphas, where timesteps are whole numbers."""
    alphas = getattr(noise_scheduler, "alphas_cumprod", None)
    if not isinstance(alphas, Tensor) or timesteps.is_floating_point():
        return None
    alpha = alphas.double().cpu()[timesteps.cpu().clamp(0, len(alphas) - 1)]
    levels: list[float] = torch.sqrt((1 - alpha) / alpha).tolist()
    return levels
