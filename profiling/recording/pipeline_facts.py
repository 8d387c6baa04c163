"""What tells one pipeline from another, for a folder of renders or a recording: those of another pipeline must not be taken for its own."""

import hashlib
from typing import Any

import torch
from torch import nn

from diffcache.hooks.class_swap import base_class
from diffcache.host.adapters import adapters_of
from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import denoisers_of, networks_of, noise_schedulers_of
from diffcache.host.identity import model_of
from diffcache.host.weight_formats import quantization_of
from diffcache.profiling.recording.loops import target_of

VALUES = 16
"""How many values of each parameter are looked at. Our choice."""


def facts_of(pipe: Any) -> dict[str, Any]:
    """Of all networks the classes, configurations, dtypes, quantisation, adapters and some weights; of a pipeline's noise schedulers the configurations."""
    return {
        "networks": {
            name: [*_kind_of(network), quantization_of(network), _adapters(network), _weights(network)]
            for name, network in networks_of(target_of(pipe)).items()
        },
        "noise schedulers": [
            [base_class(type(one)).__name__, _hash(repr(_settings(one)))] for one in noise_schedulers_of(pipe)
        ],
    }


def models_of(pipe: Any) -> dict[str, tuple[str, str]]:
    """Class and hash of the configuration of each denoiser, by name."""
    found = {name: model_of(m) for name, m in each_uncompiled(denoisers_of(target_of(pipe))).items()}
    return {name: (model.name, model.config) for name, model in found.items()}


def digests_of(pipe: Any) -> dict[str, str]:
    """A hash of each of its facts, for files that say more than this."""
    return {name: _hash(repr(fact)) for name, fact in facts_of(pipe).items()}


def _settings(noise_scheduler: Any) -> list[tuple[str, Any]]:
    """Its configuration. What begins with "_" says how it was loaded, in an order that changes from process to process."""
    config = dict(getattr(noise_scheduler, "config", {}))
    return sorted((name, value) for name, value in config.items() if not name.startswith("_"))


def _kind_of(module: nn.Module) -> list[str]:
    """The class, the hash of the configuration, and the dtype of a network."""
    model = model_of(module)
    dtypes = sorted({str(parameter.dtype) for parameter in module.parameters()})
    return [model.name, model.config, ", ".join(dtypes)]


def _adapters(network: nn.Module) -> str:
    """A hash of the adapters that are active, and of their scales."""
    return _hash(repr(adapters_of(network)))


def _weights(network: nn.Module) -> str:
    """A hash of some values of each parameter. Those that are offloaded to nowhere do not count."""
    held = [p for p in network.parameters() if type(p) is nn.Parameter and p.device.type != "meta"]
    values = [p.detach().flatten()[:: max(p.numel() // VALUES, 1)].float().cpu() for p in held]
    return _hash(repr(torch.cat(values).tolist()) if values else "")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
