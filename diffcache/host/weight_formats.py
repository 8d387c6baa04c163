"""What a denoiser's weights are stored in, whoever quantised them: torchao, bitsandbytes, GGUF."""

import hashlib
from collections import Counter
from typing import Any

from torch import Tensor, nn

from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import denoisers_of

QUANTISERS = ("torchao", "bitsandbytes", "diffusers.quantizers")
"""Packages whose tensor classes are quantised weights."""


def quantization_of(module: nn.Module) -> str | None:
    """What its weights are quantised to, with a hash of which layer is what; None where all are plain numbers.

    "96 x Int8Tensor with activations (5e3f21aa)". Equal strings mean the same layers in the same formats, not the same
    values. Reads no tensor.
    """
    kinds = {name: _kind(weight) for name, weight in module.named_parameters() if is_quantised(weight)}
    if not kinds:
        method = getattr(getattr(module, "hf_quantizer", None), "quantization_config", None)
        return None if method is None else str(getattr(method, "quant_method", "unknown"))
    counts = Counter(short for short, _ in kinds.values())
    digest = hashlib.sha256(repr(sorted(kinds.items())).encode()).hexdigest()[:8]
    return f"{', '.join(f'{count} x {short}' for short, count in counts.items())} ({digest})"


def quantizations_of(target: Any) -> dict[str, str]:
    """Of each denoiser of a target that is quantised, by its name."""
    found = {name: quantization_of(module) for name, module in each_uncompiled(denoisers_of(target)).items()}
    return {name: kind for name, kind in found.items() if kind is not None}


def is_quantised(weight: Tensor) -> bool:
    return type(weight).__module__.startswith(QUANTISERS)


def weight_bytes(module: nn.Module) -> int:
    """Bytes of a module's parameters and buffers as they are stored."""
    held = {id(t): t for tensor in (*module.parameters(), *module.buffers()) for t in _parts(tensor)}
    return sum(t.numel() * t.element_size() for t in held.values())


def _kind(weight: Any) -> tuple[str, str]:
    """A quantised weight's class, for people, and its format in full."""
    details = _flattened(weight)[1] if hasattr(weight, "__tensor_flatten__") else {}
    details = {
        key: value for key, value in details.items() if key != "dtype"
    }  # of what it is multiplied with
    acts = details.get("act_quant_kwargs") is not None
    name = type(weight).__name__
    return (
        f"{name} with activations" if acts else name,
        f"{name} {getattr(weight, 'quant_type', '')} {details}",
    )


def _parts(tensor: Any) -> list[Tensor]:
    """The plain tensors that a tensor is made of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    return [part for name in _flattened(tensor)[0] for part in _parts(getattr(tensor, name))]


def _flattened(tensor: Any) -> tuple[list[str], dict[str, Any]]:
    names, details = tensor.__tensor_flatten__()
    return names, details or {}
