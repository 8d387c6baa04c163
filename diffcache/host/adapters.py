"""Which adapters (LoRA, IP-Adapter and the like) are active in a network, and at which scales."""

from typing import Any

from torch import nn


def adapters_of(module: nn.Module) -> list[tuple[Any, ...]]:
    """The active adapters of each adapted layer, with their scales. Reads no tensor."""
    return [strength for layer in module.modules() if (strength := _strength(layer)) is not None]


def _strength(layer: Any) -> tuple[Any, ...] | None:
    if hasattr(layer, "scaling") and hasattr(layer, "active_adapters"):
        return tuple(layer.active_adapters), tuple(layer.scaling.items()), layer.disable_adapters
    if "IPAdapter" in type(layer).__name__ and hasattr(layer, "scale"):
        return tuple(layer.scale) if isinstance(layer.scale, list) else (layer.scale,)
    return None
