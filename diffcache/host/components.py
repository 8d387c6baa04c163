"""Which parts of the target of `accelerate` are denoisers, and which are noise schedulers."""

import inspect
from collections.abc import Collection, Iterable
from typing import Any, TypeGuard

from torch import nn

from diffcache.host.compiled import each_uncompiled, uncompiled
from diffcache.host.conventions import (
    FOREIGN_HOOKS,
    TIMES,
)
from diffcache.host.structure import modules_inside
from diffcache.schedulers.errors import ConfigError, TargetError


def is_pipeline(target: object) -> bool:
    """Whether it is a Diffusers pipeline, modular or not."""
    from diffusers import DiffusionPipeline, ModularPipeline

    return isinstance(target, (DiffusionPipeline, ModularPipeline))


def components_of(pipeline: Any) -> dict[str, Any]:
    """The parts of a pipeline by name.

    Diffusers' `components` lacks parts for which `__init__` has a default, as LongCat-AudioDiT has for its noise scheduler.
    """
    from diffusers import SchedulerMixin

    parts = dict(pipeline.components)
    for name in pipeline.config:
        part = vars(pipeline).get(name)  # getattr would warn of what is an option and no part
        if isinstance(part, (nn.Module, SchedulerMixin)):
            parts[name] = part
    return {name: part for name, part in parts.items() if part is not None}


def has_autoencoder(pipeline: Any) -> bool:
    """Whether a pipeline makes pictures of what its denoiser leaves with a network that decodes."""
    parts = components_of(pipeline).values()
    return any(isinstance(part, nn.Module) and hasattr(part, "decode") for part in parts)


def networks_of(target: Any) -> dict[str, nn.Module]:
    """All networks of a pipeline by component name, or a module itself, called "denoiser"; none of any other target."""
    parts = components_of(target) if is_pipeline(target) else {"denoiser": target}
    return each_uncompiled({name: part for name, part in parts.items() if isinstance(part, nn.Module)})


def modules_of(target: Any) -> list[nn.Module]:
    """All networks of a pipeline, or a module itself."""
    return list(networks_of(target).values())


def denoisers_of(target: Any, components: Collection[str] | None = None) -> dict[str, nn.Module]:
    """The denoisers of a target by component name, compiled or not.

    Args:
        target: a pipeline, or a module, which is its own denoiser and called "denoiser".
        components: names of a pipeline's components: only these are its denoisers. A control network is one only if it is
            named here. None: all denoisers.

    Raises:
        TargetError: the target is neither a pipeline nor a denoiser, or a pipeline that has no denoiser, or none of that
            name.
    """
    if isinstance(target, nn.Module):
        if components is not None:
            raise TargetError("components= names parts of a pipeline: leave it out for a single denoiser.")
        refuse_no_denoiser(target, "a Diffusers pipeline, a denoiser or a masked-diffusion language model")
        return {"denoiser": target}
    if not is_pipeline(target):
        what = f"the class {target.__name__}" if isinstance(target, type) else f"a {type(target).__name__}"
        raise TargetError(
            f"cannot accelerate {what}: pass a Diffusers pipeline, or a denoiser (torch.nn.Module)."
        )
    parts = components_of(target)
    if components is not None:
        return _named(target, {name: part for name, part in parts.items() if _takes_time(part)}, components)
    found = {name: part for name, part in parts.items() if is_denoiser(part)}
    if not found:
        raise TargetError(
            f"{type(target).__name__} has no denoiser loaded (a component whose forward takes a timestep): {_way_to_one(target)}."
        )
    return found


def _way_to_one(pipeline: Any) -> str:
    """What to do where no component is a denoiser."""
    for name, part in components_of(pipeline).items():
        if is_wrapper(part):
            return (
                f"{name} is a {type(part).__name__}, whose forward names no argument; put the network that it wraps into the pipeline (PEFT's "
                "adapters need no wrapper there: add_adapter)"
            )
    missing = [name for name, part in pipeline.components.items() if part is None]
    if missing:
        return f"load {', '.join(missing)} first, or pass the denoiser itself"
    return "its networks do the same at every noise level, which no cache here is for"


def is_wrapper(part: object) -> TypeGuard[nn.Module]:
    """Whether it is a module whose forward names no argument, as that of PEFT's models: nothing tells whether it wraps a denoiser."""
    if not isinstance(part, nn.Module) or type(uncompiled(part)).forward is nn.Module.forward:
        return False
    _, *parameters = inspect.signature(type(uncompiled(part)).forward).parameters.values()
    return bool(parameters) and all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def refuse_no_denoiser(module: nn.Module, instead: str) -> None:
    """Raises TargetError where a module cannot be a denoiser, and says what to pass `instead`; in doubt it is a denoiser."""
    why = _why_no_denoiser(uncompiled(module))
    if why is not None:
        raise TargetError(
            f"{type(uncompiled(module)).__name__} is no denoiser, whose forward takes the noisy sample and the time "
            f"({why}): pass {instead}."
        )


def unknown_argument(pipeline: Any, call: Iterable[str]) -> str | None:
    """The first of these names that is no argument of the pipeline's call; None where each is one, or may be one."""
    parameters = inspect.signature(type(pipeline).__call__).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    return next((name for name in call if name not in parameters), None)


def check_call(pipeline: Any, call: Iterable[str]) -> None:
    """Refuses what is no pipeline with a denoiser (TargetError), and names that are no arguments of its call (ConfigError)."""
    denoisers_of(pipeline)
    name = type(pipeline).__name__
    if not is_pipeline(pipeline):
        raise TargetError(f"a {name} is no pipeline: pass the Diffusers pipeline that it is a part of.")
    unknown = unknown_argument(pipeline, call)
    if unknown is not None:
        _, *known = inspect.signature(type(pipeline).__call__).parameters
        raise ConfigError(f"{name} takes no {unknown}=: its arguments are {', '.join(known)}.")


def noise_schedulers_of(target: Any) -> list[Any]:
    """Those of a pipeline whose loop can be observed; none of any other target."""
    return observable(components_of(target).values()) if is_pipeline(target) else []


def observable(parts: Iterable[Any]) -> list[Any]:
    """The noise schedulers among these that can be observed. Some step by other names, as `ScoreSdeVeScheduler` by `step_correct` and `step_pred`."""
    from diffusers import SchedulerMixin

    known = [part for part in parts if isinstance(part, SchedulerMixin)]
    return [part for part in known if hasattr(type(part), "step") and hasattr(type(part), "set_timesteps")]


def refuse_foreign_cache(module: nn.Module, *, hooked: bool) -> None:
    """Raises TargetError where Diffusers' own caching or cache-dit is active on a denoiser; `hooked`: see `has_foreign_hook`."""
    name = type(module).__name__
    plain = uncompiled(module)
    if getattr(plain, "is_cache_enabled", False) or hooked:
        raise TargetError(f"{name} already has a Diffusers cache: call its disable_cache() first.")
    if getattr(plain, "_is_cached", False):
        raise TargetError(f"{name} is cached by cache-dit: call cache_dit.disable_cache(pipe) first.")


def is_denoiser(part: object) -> bool:
    """Whether it is a network whose forward takes a time, and neither a control network nor an autoencoder."""
    return _takes_time(part) and not is_control_network(part)


def is_control_network(network: nn.Module) -> bool:
    return "ControlNet" in type(uncompiled(network)).__name__


def _named(pipeline: Any, usable: dict[str, nn.Module], components: Collection[str]) -> dict[str, nn.Module]:
    """The components of these names, among those that run at each step (`usable`)."""
    known = isinstance(components, Collection) and not isinstance(components, str)
    unknown = not known or [name for name in components if name not in usable]
    if unknown or not components:
        raise TargetError(
            f"components={components!r} of {type(pipeline).__name__}: pass a tuple of names among {sorted(usable)}."
        )
    return {name: part for name, part in usable.items() if name in components}


def _takes_time(part: Any) -> TypeGuard[nn.Module]:
    """Whether it is a network whose forward takes a time, and no autoencoder."""
    if not isinstance(part, nn.Module) or hasattr(part, "decode"):
        return False
    cls = type(uncompiled(part))
    return "Autoencoder" not in cls.__name__ and _names_time(inspect.signature(cls.forward).parameters)


def _names_time(names: Iterable[str]) -> bool:
    """Whether an argument has the name of a time."""
    return any("timestep" in name or name in TIMES for name in names)


def _why_no_denoiser(module: nn.Module) -> str | None:
    """Why a module is certainly no denoiser; None where it may be one."""
    forward = module.__dict__.get("forward", type(module).forward)
    if forward is nn.Module.forward:
        return "it has no forward"
    parameters = inspect.signature(type(module).forward).parameters
    if _names_time(parameters):
        return None
    if hasattr(module, "decode"):
        return "it is an autoencoder: it has decode()"
    main = getattr(module, "main_input_name", None)  # every model of Transformers has one
    if main in parameters:
        return f"its forward takes {main}, and no time"
    takes_any = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values())
    inputs = [p for p in list(parameters.values())[1:] if not isinstance(p.default, bool)]
    return None if takes_any or len(inputs) > 1 else "its forward takes one input, and no time"


def has_foreign_hook(network: nn.Module) -> bool:
    """Whether a hook of Diffusers' own caching is on a network or on a module inside it."""
    registries = (module.__dict__.get("_diffusers_hook") for module in modules_inside(network))
    hooks = (hook for registry in registries if registry is not None for hook in registry.hooks.values())
    return any(type(hook).__module__ in FOREIGN_HOOKS for hook in hooks)
