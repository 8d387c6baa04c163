"""The plain pipeline with fewer steps, under every noise scheduler that suits: what a cache has to beat."""

from typing import Any

import diffusers

from diffcache.evals.harness.fewer_steps import OWN, noise_schedulers

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
            found[name] = made.from_config(own.config, **options)
    if isinstance(pipe, diffusers.DDIMPipeline):
        others = {name: _for_ddim_pipeline(solver) for name, solver in found.items() if name != OWN}
        return {OWN: own, **others}
    return found


def is_flow(noise_scheduler: Any) -> bool:
    config = noise_scheduler.config
    return isinstance(noise_scheduler, diffusers.FlowMatchEulerDiscreteScheduler) or bool(
        getattr(config, "use_flow_sigmas", False)
    )


def _for_ddim_pipeline(solver: Any) -> Any:
    """Ignores DDIM's own options: this pipeline gives them to every noise scheduler."""
    kind: type[Any] = type(solver)

    def step(self: Any, model_output: Any, timestep: Any, sample: Any, **_: Any) -> Any:
        return kind.step(self, model_output, timestep, sample)

    lenient: Any = type(kind.__name__, (kind,), {"step": step})
    return lenient.from_config(solver.config)
