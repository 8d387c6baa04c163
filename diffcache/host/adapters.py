"""Which adapters (LoRA, IP-Adapter and the like) are active in a denoiser, and how strongly."""

from typing import Any

from torch import nn

IMAGE_PROJECTIONS = ("encoder_hid_proj", "image_proj")
"""What a denoiser has for an IP-Adapter's picture, by kind of denoiser."""


def adapters_of(module: nn.Module) -> tuple[Any, ...]:
    """Active adapters and scales of every adapted layer; empty where none is loaded. Reads no tensor."""
    by_lora = getattr(module, "_hf_peft_config_loaded", False)
    by_picture = any(getattr(module, name, None) is not None for name in IMAGE_PROJECTIONS)
    if not by_lora and not by_picture:
        return ()
    return tuple(strength for layer in module.modules() if (strength := _strength(layer)) is not None)


def _strength(layer: Any) -> tuple[Any, ...] | None:
    if hasattr(layer, "scaling") and hasattr(layer, "active_adapters"):
        return tuple(layer.active_adapters), tuple(layer.scaling.items()), layer.disable_adapters
    if "IPAdapter" in type(layer).__name__ and hasattr(layer, "scale"):
        return tuple(layer.scale) if isinstance(layer.scale, list) else (layer.scale,)
    return None
