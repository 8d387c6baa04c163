"""Fewer steps as a contender of the race: the plain pipeline under every noise scheduler that suits."""

from typing import Any

import diffusers

from diffcache.evals.harness.fewer_steps import called_like, noise_schedulers

VARIANCE_PRESERVING: dict[str, tuple[str, dict[str, Any]]] = {
    "DPM++ 2M Karras": ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    "DDIM": ("DDIMScheduler", {}),
    "Euler": ("EulerDiscreteScheduler", {}),
}
"""For models that predict noise or velocity; beside these "own", "DPM++ 2M" and "UniPC"."""


def solvers(pipe: Any) -> dict[str, Any]:
    """Noise schedulers by name: "own", and the others that the model can be run with."""
    own, found = pipe.scheduler, noise_schedulers(pipe)
    if is_flow(own):
        if not isinstance(own, diffusers.FlowMatchEulerDiscreteScheduler):
            shift = getattr(own.config, "flow_shift", 1.0)
            found["Euler"] = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
        return found
    for name, (kind, options) in VARIANCE_PRESERVING.items():
        made = getattr(diffusers, kind)
        if type(own) is not made or options:
            found[name] = called_like(own, made.from_config(own.config, **options))
    return found


def is_flow(noise_scheduler: Any) -> bool:
    config = noise_scheduler.config
    return isinstance(noise_scheduler, diffusers.FlowMatchEulerDiscreteScheduler) or bool(
        getattr(config, "use_flow_sigmas", False)
    )
