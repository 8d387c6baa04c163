"""What we know of particular noise schedulers. One that needs a special case gets it here, and nowhere else."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffcache.noise_schedulers.options import option_of
from diffcache.noise_schedulers.timesteps import timesteps_of
from diffcache.schedulers.errors import ScheduleError

NOISE_OPTIONS = ("eta", "s_churn")
"""Options of `step` that make a noise scheduler add noise, unless they are 0."""

WITHOUT_NOISE = {
    "CogVideoXDPMScheduler": "CogVideoXDDIMScheduler",
    "CosineDPMSolverMultistepScheduler": "EDMDPMSolverMultistepScheduler",
    "DDPMParallelScheduler": "DDIMParallelScheduler",
    "DDPMScheduler": "DDIMScheduler",
    "DPMSolverSDEScheduler": "DPMSolverMultistepScheduler",
    "EulerAncestralDiscreteScheduler": "EulerDiscreteScheduler",
    "FlowMatchLCMScheduler": "FlowMatchEulerDiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler": "KDPM2DiscreteScheduler",
    "LCMScheduler": "TCDScheduler with eta=0",
    "LTXEulerAncestralRFScheduler": "FlowMatchEulerDiscreteScheduler",
    "SASolverScheduler": "UniPCMultistepScheduler",
}
"""Noise schedulers that add fresh noise at their steps, and a deterministic one of the same family."""

TIME_PER_SAMPLE = ("DDPMWuerstchenScheduler",)
"""Noise schedulers whose `step` takes one time for each sample."""

TOWARDS_DATA = ("MiniMaxH3Scheduler",)
"""Noise schedulers of flow matching whose denoiser predicts clean - noise, at sigmas that are shares of noise."""

NEVER_CLIPS = ("CogVideoXDDIMScheduler", "CogVideoXDPMScheduler", "TCDScheduler")
"""Noise schedulers that have the options `clip_sample` or `thresholding`, and whose `step` asks for neither."""

LEARNED_VARIANCES = ("learned", "learned_range")
"""Values of `variance_type` with which a denoiser returns the logarithm of the variance behind the output, along the channels."""


def noise_option(noise_scheduler: Any, step_options: Mapping[str, Any]) -> str | None:
    """The option because of which a `step` with these keyword arguments adds noise; None where it adds none."""
    values = {**_noise_by_default(type(noise_scheduler).step), **step_options}
    return next((option for option in NOISE_OPTIONS if values.get(option)), None)


def asked_noise_option(noise_scheduler: Any, call: Mapping[str, Any]) -> str | None:
    """The option of a pipeline's call that it hands on to `step`, which will add noise because of it; None where there is none."""
    taken = inspect.signature(type(noise_scheduler).step).parameters
    return next((option for option in NOISE_OPTIONS if option in taken and call.get(option)), None)


def without_noise(noise_scheduler: Any) -> str:
    """What to use instead of a noise scheduler that adds fresh noise at its steps."""
    algorithm = str(option_of(noise_scheduler, "algorithm_type"))
    if algorithm.startswith("sde-"):
        return f'algorithm_type="{algorithm.removeprefix("sde-")}"'
    if option_of(noise_scheduler, "stochastic_sampling"):
        return "stochastic_sampling=False"
    like_ddpm = hasattr(noise_scheduler, "alphas_cumprod")
    another = (
        "a deterministic one, such as DDIMScheduler"
        if like_ddpm
        else "a deterministic one, if one suits the model"
    )
    return WITHOUT_NOISE.get(type(noise_scheduler).__name__, another)


@cache
def _noise_by_default(step: Callable[..., Any]) -> dict[str, float]:
    """The options that make a `step` add noise where they are not given, and their defaults (TCD: eta 0.3)."""
    parameters = inspect.signature(step).parameters
    return {name: parameters[name].default for name in NOISE_OPTIONS if _is_on(parameters.get(name))}


def _is_on(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and isinstance(parameter.default, (int, float)) and parameter.default > 0


def limits_samples(noise_scheduler: Any) -> str | None:
    """How its steps limit the predicted clean sample, after which a step is not linear in the output; None: not at all."""
    if type(noise_scheduler).__name__ in NEVER_CLIPS:
        return None
    if option_of(noise_scheduler, "thresholding"):
        return "limits predicted samples (thresholding=True)"
    return "clips predicted samples (clip_sample=True)" if option_of(noise_scheduler, "clip_sample") else None


def clip_range_of(noise_scheduler: Any) -> float | None:
    """The largest magnitude of its predicted samples, beyond which they are clipped; None where they are not, or by a quantile."""
    limits = limits_samples(noise_scheduler)
    if limits is None or option_of(noise_scheduler, "thresholding"):
        return None
    return float(option_of(noise_scheduler, "clip_sample_range") or 1.0)


def sigmas_of(noise_scheduler: Any) -> list[float] | None:
    """The noise level at each of its timesteps. Reads the device.

    Returns:
        None where it keeps neither sigmas nor alphas, and where a level is not finite (with zero terminal SNR the first
        level is infinite).
    """
    timesteps = timesteps_of(noise_scheduler)
    if timesteps is None:
        return None
    levels = _kept_levels(noise_scheduler, len(timesteps)) or _levels_of_alphas(noise_scheduler, timesteps)
    return levels if levels is not None and all(map(math.isfinite, levels)) else None


def training_times_of(noise_scheduler: Any) -> list[float] | None:
    """Its timesteps as fractions of its training steps; None where it does not tell how many these are."""
    timesteps = timesteps_of(noise_scheduler)
    steps = option_of(noise_scheduler, "num_train_timesteps")
    return [float(t) / steps for t in timesteps.tolist()] if timesteps is not None and steps else None


def model_input(noise_scheduler: Any, sample: Tensor, time: Tensor) -> Tensor:
    """The denoiser's input for a sample: some noise schedulers scale it first."""
    if not hasattr(noise_scheduler, "scale_model_input"):
        return sample
    scaled: Tensor = noise_scheduler.scale_model_input(sample, time)
    return scaled


def next_sample(noise_scheduler: Any, output: Tensor, time: Tensor, sample: Tensor) -> Tensor:
    """The sample after one step, fp64, without the noise that options ask for.

    The class's `step` is called, because the instance's may be wrapped by somebody.
    """
    cls = type(noise_scheduler)
    if option_of(noise_scheduler, "variance_type") in LEARNED_VARIANCES:
        output = torch.cat([output, torch.zeros_like(output)], dim=1)
    if cls.__name__ in TIME_PER_SAMPLE:
        time = time.expand(len(sample))
    stepped: Tensor = cls.step(
        noise_scheduler, output, time, sample, **dict.fromkeys(_noise_by_default(cls.step), 0.0)
    )[0]
    return stepped.double()


def is_flow(noise_scheduler: Any, sigmas: Sequence[float] | None) -> bool:
    """Whether it mixes signal and noise as flow matching does: x = (1 - sigma) * clean + sigma * noise.

    Args:
        sigmas: its noise levels (`sigmas_of`).
    """
    if (
        option_of(noise_scheduler, "use_flow_sigmas")
        or option_of(noise_scheduler, "prediction_type") == "flow_prediction"
    ):
        return True
    if hasattr(noise_scheduler, "alphas_cumprod") or option_of(noise_scheduler, "sigma_data") is not None:
        return False
    return sigmas is not None and max(sigmas) <= 1


def is_inverted(noise_scheduler: Any) -> bool:
    """Whether its sigmas, of flow matching, are shares of signal that rise to 1 (Mochi); the denoiser predicts clean - noise then."""
    return bool(option_of(noise_scheduler, "invert_sigmas"))


def is_negated(noise_scheduler: Any) -> bool:
    """Whether the denoiser predicts the negative velocity: where sigmas are inverted, in `TOWARDS_DATA`, and inside EDM's preconditioning.

    In the last the clean sample is c_skip * x + c_out * output with c_out > 0 (Playground v2.5), and with c_out < 0 where the configuration says "v_prediction".
    """
    if hasattr(noise_scheduler, "alphas_cumprod") or option_of(noise_scheduler, "sigma_data") is None:
        return is_inverted(noise_scheduler) or type(noise_scheduler).__name__ in TOWARDS_DATA
    return bool(option_of(noise_scheduler, "prediction_type") == "epsilon")


def unit_of(noise_scheduler: Any) -> float:
    """The standard deviation of clean samples for which it is made."""
    return float(option_of(noise_scheduler, "sigma_data") or 1.0)


def prediction_type_of(noise_scheduler: Any) -> str:
    """What the denoiser predicts: "epsilon" (the noise), "sample" (the clean sample) or "velocity".

    The network inside EDM's preconditioning counts as "velocity", whatever its noise scheduler's configuration calls it: so
    does every output whose scale is the same at all noise levels.
    """
    if not hasattr(noise_scheduler, "alphas_cumprod"):
        return "velocity"
    names = {"epsilon": "epsilon", "sample": "sample", "original_sample": "sample"}
    return names.get(option_of(noise_scheduler, "prediction_type") or "", "velocity")


def signal_and_noise_of(
    noise_scheduler: Any, sigmas: Sequence[float] | None
) -> list[tuple[float, float]] | None:
    """How much signal and how much noise the denoiser's input holds at each timestep. Reads the device.

    Their squares sum to one, but for flow matching, where they sum to one themselves. None where this is not known.

    Args:
        sigmas: its noise levels (`sigmas_of`).
    """
    alphas = getattr(noise_scheduler, "alphas_cumprod", None)
    timesteps = timesteps_of(noise_scheduler)
    if sigmas is None:  # the first level of zero terminal SNR is infinite
        if timesteps is None or not isinstance(alphas, Tensor) or timesteps.is_floating_point():
            return None
        signals = _at_timesteps(alphas, timesteps).tolist()
        return [(math.sqrt(signal), math.sqrt(1 - signal)) for signal in signals]
    if is_flow(noise_scheduler, sigmas):
        inverted = is_inverted(noise_scheduler)
        return [(sigma, 1 - sigma) if inverted else (1 - sigma, sigma) for sigma in sigmas]
    unit = option_of(noise_scheduler, "sigma_data") or (1.0 if isinstance(alphas, Tensor) else None)
    if unit is None:
        return None
    return [(unit / math.hypot(unit, sigma), sigma / math.hypot(unit, sigma)) for sigma in sigmas]


def timesteps_at(noise_scheduler: Any, sigmas: Sequence[float]) -> Tensor:
    """The timesteps at other noise levels, one for each, as its `set_timesteps` would choose them.

    They are proportional to the noise levels in flow matching; other noise schedulers interpolate their training's levels.

    Raises:
        ScheduleError: it does not keep one noise level for each timestep, or its timesteps do not follow noise levels.
    """
    levels, timesteps = getattr(noise_scheduler, "sigmas", None), noise_scheduler.timesteps
    name = type(noise_scheduler).__name__
    if not isinstance(levels, Tensor) or len(levels) != len(timesteps) + 1 or len(sigmas) != len(timesteps):
        raise ScheduleError(
            f"{name} cannot be respaced: it does not keep one noise level for each step of the run; leave respace off."
        )
    steps = option_of(noise_scheduler, "num_train_timesteps")
    if steps and torch.allclose(timesteps.double().cpu(), levels[:-1].double().cpu() * steps, atol=1.0):
        times = torch.tensor([sigma * steps for sigma in sigmas], dtype=torch.float64)
    elif hasattr(noise_scheduler, "_sigma_to_t") and hasattr(noise_scheduler, "alphas_cumprod"):
        alphas = noise_scheduler.alphas_cumprod.double().cpu().numpy()
        log_sigmas = np.log(((1 - alphas) / alphas) ** 0.5)
        found = np.array([float(noise_scheduler._sigma_to_t(np.array(s), log_sigmas)) for s in sigmas])
        times = torch.from_numpy(found if timesteps.is_floating_point() else found.round())
    else:
        raise ScheduleError(
            f"{name} cannot be respaced: its timesteps do not follow noise levels; leave respace off."
        )
    return times.to(timesteps)


def _kept_levels(noise_scheduler: Any, count: int) -> list[float] | None:
    """The noise levels in its `sigmas`, at its first `count` timesteps."""
    sigmas = getattr(noise_scheduler, "sigmas", None)
    if not isinstance(sigmas, Tensor) or sigmas.ndim != 1 or len(sigmas) < count:
        return None
    levels: list[float] = sigmas[:count].tolist()
    between = getattr(noise_scheduler, "sigmas_interpol", None)
    if isinstance(between, Tensor):  # KDPM2: every second timestep lies between two levels
        # The ancestral one keeps these levels a place earlier.
        first = 0 if hasattr(noise_scheduler, "sigmas_down") else 1
        levels[1::2] = between[first::2][: count // 2].tolist()
    return levels


def _levels_of_alphas(noise_scheduler: Any, timesteps: Tensor) -> list[float] | None:
    """The noise levels that follow from its training's alphas, where timesteps are whole numbers."""
    alphas = getattr(noise_scheduler, "alphas_cumprod", None)
    if not isinstance(alphas, Tensor) or timesteps.is_floating_point():
        return None
    alpha = _at_timesteps(alphas, timesteps)
    levels: list[float] = torch.sqrt((1 - alpha) / alpha).tolist()
    return levels


def _at_timesteps(alphas: Tensor, timesteps: Tensor) -> Tensor:
    """The training's alphas at timesteps that are whole numbers, fp64 on the CPU."""
    return alphas.double().cpu()[timesteps.cpu().clamp(0, len(alphas) - 1)]
