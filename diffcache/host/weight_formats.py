"""The formats of a denoiser's weights, whichever package quantised them: torchao, bitsandbytes, GGUF."""

import hashlib
from collections import Counter
from typing import Any

from torch import Tensor, nn

from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import denoisers_of

QUANTISERS = ("torchao", "bitsandbytes", "diffusers.quantizers")
"""Packages with tensor classes for quantised weights."""


def quantization_of(module: nn.Module) -> str | None:
    """Describes the formats of a module's quantised weights; None if none is quantised.

    For example "96 x Int8Tensor with activations (5e3f21aa)", which ends in a hash of each layer's format. If two modules
    have equal descriptions, the same layers have the same formats; their values may differ. Reads no tensor.
    """
    kinds = {name: _kind(weight) for name, weight in module.named_parameters() if is_quantised(weight)}
    if not kinds:
        method = getattr(getattr(module, "hf_quantizer", None), "quantization_config", None)
        return None if method is None else str(getattr(method, "quant_method", "unknown"))
    counts = Counter(short for short, _ in kinds.values())
    digest = hashlib.sha256(repr(sorted(kinds.items())).encode()).hexdigest()[:8]
    return f"{', '.join(f'{count} x {short}' for short, count in counts.items())} ({digest})"


def quantizations_of(target: Any) -> dict[str, str]:
    """`quantization_of` each denoiser of a target, by name; only of those that are quantised."""
    found = {name: quantization_of(module) for name, module in each_uncompiled(denoisers_of(target)).items()}
    return {name: kind for name, kind in found.items() if kind is not None}


def is_quantised(weight: Tensor) -> bool:
    return type(weight).__module__.startswith(QUANTISERS)


def weight_bytes(module: nn.Module) -> int:
    """Bytes that a module's parameters and buffers take in the formats that they are stored in."""
    held = {id(t): t for tensor in (*module.parameters(), *module.buffers()) for t in _parts(tensor)}
    return sum(t.numel() * t.element_size() for t in held.values())


def _kind(weight: Any) -> tuple[str, str]:
    """Of a quantised weight, a short description for people, and its format in full."""
    details = _flattened(weight)[1] if hasattr(weight, "__tensor_flatten__") else {}
    details = {
        key: value for key, value in details.items() if key != "dtype"
    }  # the activations', no part of the format
    name = type(weight).__name__
    has_activations = details.get("act_quant_kwargs") is not None
    short = f"{name} with activations" if has_activations else name
    return short, f"{name} {getattr(weight, 'quant_type', '')} {details}"


def _parts(tensor: Any) -> list[Tensor]:
    """The plain tensors that a tensor is made of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    return [part for name in _flattened(tensor)[0] for part in _parts(getattr(tensor, name))]


def _flattened(tensor: Any) -> tuple[list[str], dict[str, Any]]:
    names, details = tensor.__tensor_flatten__()
    return names, details or {}
