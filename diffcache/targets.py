"""What a user hands to `accelerate`: which parts of it are denoisers and noise schedulers."""

import inspect
from typing import Any

from torch import nn

from diffcache.compiled import uncompiled
from diffcache.schedulers.errors import TargetError

TIMES = {"t", "time", "times", "sigma", "sigmas", "noise_level", "noise_labels"}
FOREIGN_HOOKS = {
    "diffusers.hooks.first_block_cache",
    "diffusers.hooks.faster_cache",
    "diffusers.hooks.mag_cache",
    "diffusers.hooks.pyramid_attention_broadcast",
    "diffusers.hooks.sea_cache",
    "diffusers.hooks.taylorseer_cache",
    "diffusers.hooks.text_kv_cache",
}


def is_pipeline(target: object) -> bool:
    """A Diffusers pipeline, modular or not."""
    from diffusers import DiffusionPipeline, ModularPipeline

    return isinstance(target, (DiffusionPipeline, ModularPipeline))


def components_of(pipeline: Any) -> dict[str, Any]:
    return {name: part for name, part in pipeline.components.items() if part is not None}


def modules_of(target: Any) -> list[nn.Module]:
    """A pipeline's networks, or a bare module; none of anything else."""
    if isinstance(target, nn.Module):
        return [uncompiled(target)]
    parts = components_of(target).values() if is_pipeline(target) else ()
    return [uncompiled(part) for part in parts if isinstance(part, nn.Module)]


def denoisers_of(target: Any) -> dict[str, nn.Module]:
    """The denoisers by component name; a bare module is its own, called "denoiser". As they are, compiled or not.

    Raises:
        TargetError: neither a pipeline nor a module, or a pipeline without a denoiser.
    """
    if isinstance(target, nn.Module):
        return {"denoiser": target}
    if not is_pipeline(target):
        raise TargetError(
            f"cannot accelerate a {type(target).__name__}: pass a Diffusers pipeline, or a denoiser (torch.nn.Module)."
        )
    found = {name: part for name, part in components_of(target).items() if is_denoiser(part)}
    if not found:
        raise TargetError(
            f"{type(target).__name__} has no denoiser loaded (a component whose forward takes a timestep): "
            "load its components first, or pass the denoiser itself."
        )
    return found


def noise_schedulers_of(pipeline: Any) -> list[Any]:
    from diffusers import SchedulerMixin

    return [part for part in components_of(pipeline).values() if isinstance(part, SchedulerMixin)]


def refuse_foreign_cache(module: nn.Module) -> None:
    """Raises TargetError where Diffusers' own caching or cache-dit is active on a denoiser."""
    name = type(module).__name__
    plain = uncompiled(module)
    if getattr(plain, "is_cache_enabled", False) or any(_has_foreign_hook(part) for part in plain.modules()):
        raise TargetError(f"{name} already has a Diffusers cache: call its disable_cache() first.")
    if getattr(plain, "_is_cached", False):
        raise TargetError(f"{name} is cached by cache-dit: call cache_dit.disable_cache(pipe) first.")


def is_denoiser(part: object) -> bool:
    """A network whose forward takes a time; control networks and autoencoders may too, and are none."""
    if not isinstance(part, nn.Module):
        return False
    cls = type(uncompiled(part))
    if "ControlNet" in cls.__name__ or "Autoencoder" in cls.__name__ or hasattr(part, "decode"):
        return False
    return any("timestep" in name or name in TIMES for name in inspect.signature(cls.forward).parameters)


def _has_foreign_hook(module: nn.Module) -> bool:
    registry = module.__dict__.get("_diffusers_hook")
    return registry is not None and any(
        type(hook).__module__ in FOREIGN_HOOKS for hook in registry.hooks.values()
    )
