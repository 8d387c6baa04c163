"""How a pipeline guides: the scale of guidance, and what else it makes of its passes."""

import inspect
from collections.abc import Container, Mapping
from typing import Any

from diffcache.host.components import modules_of
from diffcache.host.conventions import (
    ADDED_TO_CONDITIONAL,
    FREE_NORM,
    KEEPS_NORM,
    KEPT_SCALE,
    NEGATIVES,
    NORM_SWITCHES,
    OTHER_SCALES,
    RESCALED,
)
from diffcache.schedulers.guidance import Guidance
from diffcache.schedulers.numbers_given import is_number


def guidance_scale_of(pipeline: Any, call: Mapping[str, Any]) -> float | None:
    """The scale by which a pipeline call multiplies the difference of its guidance passes; left arguments count.

    It is 1, which is no guidance, for a pipeline that takes none, and where the scale is nothing but an input of the network. It
    is None where the call leaves it to the pipeline, where a subclass hides it among other arguments, and where a guider has none.

    Args:
        pipeline: whose `__call__` says what is left open.
        call: its arguments by name.
    """
    parameters = inspect.signature(type(pipeline).__call__).parameters
    given = _given(pipeline, call)
    values = {
        name: value
        for name, value in given.items()
        if name.endswith(("guidance_scale", "cfg_scale")) and not name.startswith(OTHER_SCALES)
    }
    if getattr(getattr(pipeline, "config", None), "is_distilled", False):
        return 1.0  # FLUX.2 klein
    if _tells_the_network(pipeline, parameters):
        values.pop("guidance_scale", None)
        if all(given.get(name) is None for name in NEGATIVES):
            values = dict.fromkeys(values, 1.0)
    if not values:
        if hasattr(pipeline, "guider"):
            return scale_of_guider(pipeline.guider)
        return None if _hides_scale(type(pipeline)) else 1.0
    added = 1.0 if type(pipeline).__name__.startswith(ADDED_TO_CONDITIONAL) else 0.0
    scales = (float(value) for value in values.values() if isinstance(value, (int, float)))
    return max((scale + added for scale in scales), default=None)


def guidance_in(pipeline: Any, call: Mapping[str, Any]) -> Guidance:
    """How a pipeline call makes one output of its guidance passes; left arguments count.

    Args:
        pipeline: whose `__call__` says what is left open.
        call: its arguments by name.
    """
    scale = guidance_scale_of(pipeline, call)
    is_rescaled = bool(_given(pipeline, call).get(RESCALED))
    return Guidance(
        scale,
        norm_kept_along(pipeline, call),
        is_rescaled,
        options=_options_of(pipeline, call, scale),
    )


def _options_of(pipeline: Any, call: Mapping[str, Any], scale: float | None) -> tuple[tuple[str, float], ...]:
    """What a call's outputs depend on beside the scale, by name: the scale that a network was distilled to, and rescaling of guided outputs."""
    given = _given(pipeline, call)
    names = [RESCALED] if scale is None or scale > 1 else []
    if _is_distilled(pipeline) and _tells_the_network(pipeline, given):
        names.append("guidance_scale")
    return tuple((name, float(given[name])) for name in names if is_number(given.get(name)))


def norm_kept_along(pipeline: Any, call: Mapping[str, Any]) -> int | None:
    """Along which dimension a pipeline call gives the guided output the norm of the conditional one; None: it does not."""
    name = type(pipeline).__name__
    if name.startswith(FREE_NORM):
        return None
    for start, along in KEEPS_NORM.items():
        if name.startswith(start):
            return along
    given = _given(pipeline, call)
    return -1 if any(given.get(key) for key in NORM_SWITCHES) else None


def _given(pipeline: Any, call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a pipeline call; those that it leaves out have their defaults."""
    parameters = inspect.signature(type(pipeline).__call__).parameters
    return {**{name: parameter.default for name, parameter in parameters.items()}, **call}


def _hides_scale(cls: type) -> bool:
    """Whether a pipeline's class hands arguments on to one that takes a scale of guidance, and does not name it itself."""
    parameters = inspect.signature(cls.__call__).parameters.values()
    hands_on = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
    named = (inspect.signature(base.__call__).parameters for base in cls.__mro__ if "__call__" in vars(base))
    return hands_on and any("guidance_scale" in names for names in named)


def guidance_scale_during(pipeline: Any) -> float | None:
    """As `guidance_scale_of`, of the call that is going on, as Diffusers' pipelines keep its scale; None where one keeps none."""
    kept = getattr(pipeline, KEPT_SCALE, None)
    return guidance_scale_of(pipeline, {"guidance_scale": kept}) if isinstance(kept, (int, float)) else None


def scale_of_guider(guider: Any) -> float | None:
    """As `guidance_scale_of`, of the component that combines guidance passes; None where it has no scale."""
    scale = getattr(guider, "guidance_scale", None)
    if not isinstance(scale, (int, float)):
        return None
    if not getattr(guider, "_enabled", True):
        return 1.0
    return float(scale + 1 if getattr(guider, "use_original_formulation", False) else scale)


def _tells_the_network(pipeline: Any, parameters: Container[str]) -> bool:
    """Whether `guidance_scale` is an input of a network that was distilled to it (FLUX.1, HunyuanVideo, Sana Sprint), and nothing else.

    Where a network of the same class was not distilled (Sana, FLUX.2 klein, FIBO), the pipeline guides by two passes.
    """
    if hasattr(type(pipeline), "do_classifier_free_guidance"):
        return False
    if "true_cfg_scale" in parameters:
        return True
    return _is_distilled(pipeline)


def _is_distilled(pipeline: Any) -> bool:
    """Whether a network of the pipeline takes the scale of guidance as an input."""
    configs = (getattr(module, "config", None) for module in modules_of(pipeline))
    return any(getattr(config, "guidance_embeds", False) for config in configs)


def kept_scales_of(pipeline: Any) -> dict[str, float]:
    """The scales of guidance that a pipeline or its guider keeps during a call, by attribute; they may change between steps."""
    guider = getattr(pipeline, "guider", None)
    kept = {**vars(pipeline), **getattr(guider, "__dict__", {})}
    return {
        name: float(value)
        for name, value in kept.items()
        if ("guidance" in name or "cfg" in name) and isinstance(value, (bool, int, float))
    }
