"""The plain pipeline with fewer steps, under its own and under multistep noise schedulers.

A cache that loses to the best of them at the same compute is worth nothing.
"""

from functools import wraps
from inspect import signature
from typing import Any

from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from diffcache.evals.harness.rendering import Rendered, render

OWN = "own"
MULTISTEP = {"DPM++ 2M": DPMSolverMultistepScheduler, "UniPC": UniPCMultistepScheduler}


def noise_schedulers(pipe: Any) -> dict[str, Any]:
    """The noise schedulers to compare with, by name: "own", and a multistep one of each kind that this is not."""
    own = pipe.scheduler
    others = {
        name: called_like(own, _converted(own, kind))
        for name, kind in MULTISTEP.items()
        if not isinstance(own, kind)
    }
    return {OWN: own, **others}


def called_like(own: Any, other: Any) -> Any:
    """A noise scheduler whose steps ignore the options that `own`'s have beyond its own: some pipelines give them always, as DDIM's `eta`."""
    unknown = signature(own.step).parameters.keys() - signature(other.step).parameters.keys()
    if not unknown:
        return other
    kind: type[Any] = type(other)

    # Pipelines that ask for its signature see the real one.
    @wraps(kind.step)
    def step(self: Any, *args: Any, **options: Any) -> Any:
        return kind.step(self, *args, **{name: options[name] for name in options.keys() - unknown})

    return type(kind.__name__, (kind,), {"step": step}).from_config(other.config)  # type: ignore[attr-defined]


def render_with_steps(pipe: Any, call: dict[str, Any], steps: int, noise_scheduler: Any = None) -> Rendered:
    """Calls a pipeline as `render` does, with another number of steps.

    Args:
        pipe: a pipeline; it has its own noise scheduler again afterwards.
        call: its keyword arguments.
        steps: instead of the call's own.
        noise_scheduler: instead of the pipeline's own; None keeps it.
    """
    own = pipe.scheduler
    pipe.scheduler = own if noise_scheduler is None else noise_scheduler
    try:
        return render(pipe, {**call, "num_inference_steps": steps})
    finally:
        pipe.scheduler = own


def _converted(own: Any, kind: type[Any]) -> Any:
    """A noise scheduler of another class for the same model: the same noise levels, the same prediction."""
    if not isinstance(own, FlowMatchEulerDiscreteScheduler):
        return kind.from_config(own.config)
    return _for_flow(kind, own.config.use_dynamic_shifting)(
        num_train_timesteps=own.config.num_train_timesteps,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=own.config.shift,
        use_dynamic_shifting=own.config.use_dynamic_shifting,
        solver_order=2,
    )


def _for_flow(kind: type[Any], is_shifted: bool) -> type[Any]:
    """A class that takes what Flux's pipelines give: sigmas, which count as a number of steps here, and a shift `mu`."""

    def set_timesteps(
        self: Any,
        num_inference_steps: int | None = None,
        device: Any = None,
        mu: float | None = None,
        sigmas: Any = None,
        **kwargs: Any,
    ) -> None:
        count = len(sigmas) if num_inference_steps is None else num_inference_steps
        shift = {"mu": mu} if is_shifted else {}
        kind.set_timesteps(self, count, device, **shift, **kwargs)

    return type(kind.__name__, (kind,), {"set_timesteps": set_timesteps})
