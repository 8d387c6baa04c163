"""Tiny modules with random weights that are the same on every machine and in every process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


@contextmanager
def poisoned_empty() -> Iterator[None]:
    """Fill `torch.empty` with NaN, so that a parameter which nobody initialised can be told from one that is small."""
    was_on, was_warn = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_on, warn_only=was_warn)


@torch.no_grad()
def enliven(module: nn.Module, std: float = 0.1) -> None:
    """Give noise to the parameters that are exactly zero or were never written.

    Diffusers starts gates, modulation tables and last projections at zero, so that an untrained block is the
    identity; here every block must matter.
    """
    for parameter in module.parameters():
        if parameter.is_floating_point() and (not parameter.isfinite().all() or not parameter.any()):
            parameter.normal_(0.0, std)


def tiny(cls: Callable[..., Module], /, *, seed: int = 0, **config: Any) -> Module:
    """An instance of `cls(**config)` with lively seeded weights, in eval mode, without gradients."""
    with torch.random.fork_rng(devices=[]), poisoned_empty():
        torch.manual_seed(seed)
        module = cls(**config)
        enliven(module)
    return module.eval().requires_grad_(False)
