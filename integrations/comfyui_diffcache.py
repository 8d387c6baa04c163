"""A node for ComfyUI: a model goes in, the same model with a cache comes out.

Copy this file into ComfyUI's custom_nodes, and install diffcache into its environment (docs/comfyui.md). The model is cached while a sampler runs,
and plain otherwise.

ComfyUI's samplers are loops of their own. A wrapper around the whole sampling opens a `denoising_run`, and a wrapper around each
model call tells it which step this is, by the noise level.
"""

import logging
from collections.abc import Sequence
from typing import Any

import comfy.patcher_extension as extension

from diffcache import ConfigError, accelerate, denoising_run, methods, report, restore

KEY = "diffcache"
SPEEDUP = "trajectory"
"""Of which the node's `speedup` is an option; other methods run with their published options."""

ONE_CALL = {
    "sample_euler",
    "sample_dpmpp_2m",
    "sample_ipndm",
    "sample_ipndm_v",
    "sample_deis",
    "sample_res_multistep",
    "sample_gradient_estimation",
}
"""Samplers that evaluate the model once in each step and add no noise; the others run in full."""

logger = logging.getLogger(KEY)


class DiffcacheNode:
    """Caches a model for the sampler that it is connected to."""

    CATEGORY = "advanced/model"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "apply"
    DESCRIPTION = "Computes some steps of the model and predicts the others."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """What ComfyUI draws."""
        known = [name for name, kind in methods().items() if hasattr(kind, "scheduler")]
        speed = {
            "default": 2.0,
            "min": 1.0,
            "max": 4.0,
            "step": 0.25,
            "tooltip": "Of trajectory: full steps over computed steps.",
        }
        return {
            "required": {
                "model": ("MODEL",),
                "speedup": ("FLOAT", speed),
                "method": ([SPEEDUP, *(name for name in known if name != SPEEDUP)],),
            }
        }

    def apply(self, model: Any, speedup: float, method: str) -> tuple[Any]:
        """A copy of the model whose sampling is cached, by this node alone; the model that came in stays as it is."""
        if method not in methods():
            raise ConfigError(f"there is no method {method!r}: choose one of {', '.join(methods())}.")
        options = {"speedup": speedup} if method == SPEEDUP else {}
        cached, steps = model.clone(), Steps(method, options)
        around = {
            extension.WrappersMP.OUTER_SAMPLE: steps.around_sampling,
            extension.WrappersMP.APPLY_MODEL: steps.around_call,
        }
        for kind, wrapper in around.items():
            # Those of a node before this one: two caches would take each other off.
            cached.remove_wrappers_with_key(kind, KEY)
            cached.add_wrapper_with_key(kind, KEY, wrapper)
        return (cached,)


class Steps:
    """One node's cache, while a sampler runs.

    Args:
        method, options: what is attached.
    """

    def __init__(self, method: str, options: dict[str, Any]) -> None:
        self.method, self.options = method, options
        self.run: Any = None
        self.levels: list[float] = []

    def around_sampling(
        self,
        executor: Any,
        noise: Any,
        latent_image: Any,
        sampler: Any,
        sigmas: Any,
        *others: Any,
        **named: Any,
    ) -> Any:
        """Samples with a cache, and leaves the model plain, whatever happens."""
        levels = [float(level) for level in sigmas]
        if not self._suits(sampler, levels):
            return executor(noise, latent_image, sampler, sigmas, *others, **named)
        net = executor.class_obj.model_patcher.model.diffusion_model
        accelerate(net, self.method, **self.options)
        try:
            with denoising_run(net, num_steps=len(levels) - 1, sigmas=levels[:-1]) as self.run:
                self.levels = levels
                sampled = executor(noise, latent_image, sampler, sigmas, *others, **named)
            logger.info(report(net).summary())
            return sampled
        finally:
            self.run = None
            restore(net)

    def around_call(self, executor: Any, x: Any, t: Any, *others: Any, **named: Any) -> Any:
        """Tells the run which step a model call belongs to. Passes that come apart are calls of the same step."""
        if self.run is not None:
            level = float(t.flatten()[0])
            step = min(range(len(self.levels) - 1), key=lambda i: abs(self.levels[i] - level))
            if step != self.step:
                self.run.begin_step(step)
            self.step = step
        return executor(x, t, *others, **named)

    def _suits(self, sampler: Any, levels: Sequence[float]) -> bool:
        self.step = -1
        name = getattr(getattr(sampler, "sampler_function", None), "__name__", type(sampler).__name__)
        if name in ONE_CALL and len(levels) > 2:
            return True
        logger.info("%s runs in full: its steps are not one model call each, or too few.", name)
        return False


NODE_CLASS_MAPPINGS = {"DiffcacheNode": DiffcacheNode}
NODE_DISPLAY_NAME_MAPPINGS = {"DiffcacheNode": "diffcache: reuse steps"}
