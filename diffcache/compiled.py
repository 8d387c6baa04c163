"""Modules that `torch.compile` has wrapped."""

from torch import nn


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that `torch.compile(module)` returned wraps, or the module itself."""
    inner = module.__dict__.get("_modules", {}).get("_orig_mod")
    return inner if isinstance(inner, nn.Module) else module
