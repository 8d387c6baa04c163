"""Rulers: the plain pipeline with fewer steps, under its own and under multistep noise schedulers.

A cache that loses to the best of them at the same compute is worth nothing.
"""

from typing import Any

from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

MULTISTEP = {"DPM++ 2M": DPMSolverMultistepScheduler, "UniPC": UniPCMultistepScheduler}


def rulers(pipe: Any) -> dict[str, Any]:
    """Noise schedulers to try with fewer steps, by name; None stands for the pipeline's own."""
    own = pipe.scheduler
    others = {name: _converted(own, cls) for name, cls in MULTISTEP.items() if not isinstance(own, cls)}
    return {"own": None, **others}


def _converted(own: Any, cls: type[Any]) -> Any:
    """A noise scheduler of another class for the same model: the same noise levels, the same prediction."""
    if not isinstance(own, FlowMatchEulerDiscreteScheduler):
        return cls.from_config(own.config)
    if not own.config.use_dynamic_shifting:
        cls = _without_mu(cls)
    return cls(
        num_train_timesteps=own.config.num_train_timesteps,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=own.config.shift,
        use_dynamic_shifting=own.config.use_dynamic_shifting,
        solver_order=2,
    )


def _without_mu(cls: type[Any]) -> type[Any]:
    """Flux's pipeline hands every noise scheduler its shift `mu`; one with a fixed shift must not take it."""

    def set_timesteps(
        self: Any, num_inference_steps: int, device: Any = None, mu: Any = None, **kwargs: Any
    ) -> None:
        cls.set_timesteps(self, num_inference_steps, device, **kwargs)

    return type(cls.__name__, (cls,), {"set_timesteps": set_timesteps})
