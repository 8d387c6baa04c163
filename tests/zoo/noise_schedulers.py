"""Swapping the noise scheduler of a pipeline for another one, configured for what its denoiser predicts."""

from __future__ import annotations

from typing import Any

import diffusers

SHORT_NAMES = {
    "FlowMatchEuler": "FlowMatchEulerDiscreteScheduler",
    "FlowMatchHeun": "FlowMatchHeunDiscreteScheduler",
    "Euler": "EulerDiscreteScheduler",
    "EulerAncestral": "EulerAncestralDiscreteScheduler",
    "DDIM": "DDIMScheduler",
    "DPM++": "DPMSolverMultistepScheduler",
    "UniPC": "UniPCMultistepScheduler",
    "Heun": "HeunDiscreteScheduler",
    "KDPM2": "KDPM2DiscreteScheduler",
    "PNDM": "PNDMScheduler",
    "LCM": "LCMScheduler",
}
MULTISTEP = {"DPMSolverMultistepScheduler", "UniPCMultistepScheduler"}
BETAS = (
    "num_train_timesteps",
    "beta_start",
    "beta_end",
    "beta_schedule",
    "prediction_type",
    "timestep_spacing",
    "steps_offset",
)


def is_flow(noise_scheduler: Any) -> bool:
    """Whether the noise scheduler serves a denoiser that predicts a velocity from data to noise."""
    config = noise_scheduler.config
    return "FlowMatch" in type(noise_scheduler).__name__ or bool(config.get("use_flow_sigmas", False))


def with_noise_scheduler(pipe: Any, cls_name: str) -> Any:
    """Give `pipe` a noise scheduler of that class (full name, or short as in `SHORT_NAMES`); returns `pipe`.

    Raises:
        ValueError: the class serves velocity predictions and the pipeline's denoiser predicts noise, or vice versa.
    """
    name = SHORT_NAMES.get(cls_name, cls_name)
    old = pipe.scheduler
    flow_only = "FlowMatch" in name
    if flow_only != is_flow(old) and name not in MULTISTEP:
        raise ValueError(f"{name} does not suit {type(pipe).__name__}, which runs on {type(old).__name__}.")
    if flow_only:
        shift = old.config.get("shift", old.config.get("flow_shift", 1.0))
        config: dict[str, Any] = {"shift": shift}
    elif is_flow(old):
        shift = old.config.get("flow_shift", old.config.get("shift", 1.0))
        config = {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": shift}
    else:
        config = {key: old.config[key] for key in BETAS if key in old.config}
    pipe.scheduler = getattr(diffusers, name)(**config)
    return pipe
