"""Which adapters (LoRA and the like) are active in a denoiser, and how strongly."""

from typing import Any

from torch import nn


def adapters_of(module: nn.Module) -> tuple[Any, ...]:
    """Active adapters and scales of every adapted layer; empty where none is loaded. Reads no tensor."""
    if not getattr(module, "_hf_peft_config_loaded", False):
        return ()
    layers: list[Any] = [
        m for m in module.modules() if hasattr(m, "scaling") and hasattr(m, "active_adapters")
    ]
    return tuple((tuple(m.active_adapters), tuple(m.scaling.items()), m.disable_adapters) for m in layers)
