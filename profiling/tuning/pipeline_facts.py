"""What tells one pipeline from another, for a folder of renders: renders of another pipeline must not be taken for its own."""

import hashlib
from typing import Any

import torch
from torch import nn

from diffcache.hooks.class_swap import base_class
from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import denoisers_of, noise_schedulers_of
from diffcache.host.identity import model_of
from diffcache.host.weight_formats import quantization_of
from diffcache.profiling.recording.loops import target_of

PARAMETERS, VALUES = 16, 16
"""How many parameters of a denoiser, and values of each, are looked at. Our choice."""


def facts_of(pipe: Any) -> dict[str, Any]:
    """Classes and configurations of denoisers and noise schedulers, dtypes, quantisation, and a few of the weights."""
    target = target_of(pipe)
    return {
        "denoisers": {
            name: [*_kind_of(module), quantization_of(module), _weights(module)]
            for name, module in each_uncompiled(denoisers_of(target)).items()
        },
        "noise schedulers": [
            [base_class(type(one)).__name__, _hash(repr(_settings(one)))] for one in noise_schedulers_of(pipe)
        ],
    }


def _settings(noise_scheduler: Any) -> list[tuple[str, Any]]:
    """Its configuration. What begins with "_" says how it was loaded, in an order that changes from process to process."""
    config = dict(getattr(noise_scheduler, "config", {}))
    return sorted((name, value) for name, value in config.items() if not name.startswith("_"))


def _kind_of(module: nn.Module) -> list[str]:
    """The class, the hash of the configuration, and the dtype of a denoiser."""
    model = model_of(module)
    dtypes = sorted({str(parameter.dtype) for parameter in module.parameters()})
    return [model.name, model.config, ", ".join(dtypes)]


def _weights(module: nn.Module) -> str:
    """A hash of a few values of the weights. Those that are offloaded to nowhere do not count."""
    held = [p for p in module.parameters() if type(p) is nn.Parameter and p.device.type != "meta"]
    chosen = held[:: max(len(held) // PARAMETERS, 1)]
    values = [p.detach().flatten()[:VALUES].float().cpu() for p in chosen]
    return _hash(repr(torch.cat(values).tolist()) if values else "")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
