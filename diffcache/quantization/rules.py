"""Which config each linear layer of a denoiser gets: one of torchao, or one of bitsandbytes."""

import dataclasses
import re
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch._inductor import config as inductor

from diffcache.quantization.with_bitsandbytes import checked, is_bitsandbytes
from diffcache.schedulers.errors import ConfigError, from_extra

TORCHAO, PROTOTYPES = "torchao.quantization", "torchao.prototype.mx_formats"


class Named(NamedTuple):
    """A config of torchao.

    Attributes:
        module, config: where its class lies, and what that is called.
        options: that differ from torchao's own; texts are members of the enumeration that the option has.
        capability: the least compute capability of a GPU; None: it runs on the CPU too.
    """

    module: str
    config: str
    options: Mapping[str, str] = MappingProxyType({})
    capability: tuple[int, int] | None = None


NAMED = {
    "int8": Named(TORCHAO, "Int8DynamicActivationInt8WeightConfig"),
    "int8-asymmetric": Named(
        TORCHAO, "Int8DynamicActivationInt8WeightConfig", {"act_mapping_type": "ASYMMETRIC"}
    ),
    "int8-weight-only": Named(TORCHAO, "Int8WeightOnlyConfig"),
    "float8": Named(TORCHAO, "Float8DynamicActivationFloat8WeightConfig"),
    "float8-weight-only": Named(TORCHAO, "Float8WeightOnlyConfig"),
    "int4": Named(
        TORCHAO, "Int4WeightOnlyConfig", {"int4_packing_format": "TILE_PACKED_TO_4D"}, capability=(8, 0)
    ),
    "int4-hqq": Named(
        TORCHAO,
        "Int4WeightOnlyConfig",
        {"int4_packing_format": "TILE_PACKED_TO_4D", "int4_choose_qparams_algorithm": "HQQ"},
        capability=(8, 0),
    ),
    "mxfp8": Named(PROTOTYPES, "MXDynamicActivationMXWeightConfig", capability=(10, 0)),
    "nvfp4": Named(PROTOTYPES, "NVFP4DynamicActivationNVFP4WeightConfig", capability=(10, 0)),
    "nvfp4-weight-only": Named(PROTOTYPES, "NVFP4WeightOnlyConfig", capability=(10, 0)),
}
"""torchao's configs by our names. What is not "weight-only" or "int4" quantises the activations too, at each call. With
"int8-asymmetric" these get a zero point beside the scale, for each token: about a decibel nearer to the full run and, measured on a
CPU, 1.4 times slower."""

REST = "_default"
"""Key of overrides for the layers that no pattern names, as in torchao's `FqnToConfig`."""

EXEMPT = re.compile(r"norm|emb|modulation|_mod(\.|$)|lora_")
"""Layers whose outputs scale and shift every token, so that their errors reach everywhere; and adapters."""

ENDS = "at an end of the denoiser"
MODULATES = "embeds or modulates"
NOT_ASKED = "not asked for"


class Rules:
    """Which config each linear layer gets.

    Args:
        quantize: what `accelerate` is given: a name of `NAMED`, a torchao config, Diffusers' `TorchAoConfig` or
            `BitsAndBytesConfig`, or a dict of these (None leaves a layer as it is) by regular expressions that are searched in a layer's path, first match
            first, with "_default" for the others.

    Attributes:
        library: that quantises: "torchao" or "bitsandbytes".

    Raises:
        ConfigError: none of these, or its package is not installed.
    """

    def __init__(self, quantize: Any) -> None:
        given = quantize if isinstance(quantize, Mapping) else _as_rules(quantize)
        self.default = _config(given.get(REST))
        self.patterns = {
            _pattern(pattern): _config(config) for pattern, config in given.items() if pattern != REST
        }
        configs = [config for config in (self.default, *self.patterns.values()) if config is not None]
        self.library = "bitsandbytes" if any(map(is_bitsandbytes, configs)) else "torchao"
        if self.library == "bitsandbytes" and any(config is not configs[0] for config in configs):
            raise ConfigError(
                "quantize=: a BitsAndBytesConfig is for all layers of a model: beside it a dict may have None only, for layers to leave."
            )

    def config_for(self, path: str, *, at_end: bool) -> tuple[Any, str]:
        """The layer's config, None to leave it as it is, and why."""
        for pattern, config in self.patterns.items():
            if pattern.search(path):
                return config, NOT_ASKED
        if at_end or EXEMPT.search(path):
            return None, ENDS if at_end else MODULATES
        return self.default, NOT_ASKED


def asked_of(quantize: Any, component: str) -> Any:
    """What is asked of one component; None: nothing. A `PipelineQuantizationConfig` has a config for each."""
    if is_for_components(quantize):
        return quantize._resolve_quant_config(is_diffusers=True, module_name=component)
    return quantize


def named_components(quantize: Any) -> list[str]:
    """The components that a `PipelineQuantizationConfig` names; empty for everything else."""
    if not is_for_components(quantize):
        return []
    return [*(quantize.quant_mapping or ()), *(quantize.components_to_quantize or ())]


def is_for_components(quantize: Any) -> bool:
    return type(quantize).__name__ == "PipelineQuantizationConfig"


def _as_rules(quantize: Any) -> dict[str, Any]:
    """What is no dict as rules: configs of Diffusers may name modules to leave out, `FqnToConfig` has a config for each layer."""
    left = (
        getattr(quantize, "modules_to_not_convert", None)
        or getattr(quantize, "llm_int8_skip_modules", None)
        or ()
    )
    rules: dict[str, Any] = {rf"(^|\.){re.escape(name)}(\.|$)": None for name in left}
    config = getattr(quantize, "quant_type", quantize)
    for path, its in getattr(config, "fqn_to_config", {REST: config}).items():
        pattern = path.removeprefix("re:") if path.startswith("re:") else re.escape(path)
        rules[path if path == REST else f"^(?:{pattern})$"] = its
    return rules


def _pattern(pattern: Any) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ConfigError(f"quantize=: {pattern!r} is no regular expression ({error}).") from error


def _named(name: str) -> Any:
    """torchao's config of this name, where this machine can run it.

    Raises:
        ConfigError: it needs another GPU, or this torchao does not have it.
    """
    named = NAMED[name]
    if named.capability is not None and _capability() < named.capability:
        least = ".".join(map(str, named.capability))
        raise ConfigError(
            f"quantize={name!r} needs a GPU of compute capability {least}: 'int8' runs everywhere."
        )
    try:
        kind = getattr(import_module(named.module), named.config)
        types: dict[str, Any] = {field.name: type(field.default) for field in dataclasses.fields(kind)}
        options = {option: types[option][member] for option, member in named.options.items()}
        if "set_inductor_config" in types:
            options["set_inductor_config"] = False  # which would slow the compilation of everything else
    except (ImportError, AttributeError, KeyError) as error:
        raise ConfigError(
            f"quantize={name!r}: this torchao does not have it ({error}): install a newer one, or pass 'int8'."
        ) from error
    inductor.force_fuse_int_mm_with_mul = (
        True  # without it the product of whole numbers is written out before it is scaled
    )
    return kind(**options)


def _capability() -> tuple[int, int]:
    """Compute capability of the GPU; (0, 0) where there is none."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)


def _config(config: Any) -> Any:
    """The config for one layer, torchao's or bitsandbytes'; None to leave it as it is."""
    if config is None:
        return None
    if is_bitsandbytes(config):
        return checked(config)
    try:
        from torchao.core.config import AOBaseConfig
    except ImportError as error:
        raise ConfigError(f"quantize= needs torchao: {from_extra('quant')}.") from error
    if isinstance(config, str) and config in NAMED:
        return _named(config)
    if hasattr(config, "act_quant_scale"):
        raise ConfigError(
            f"quantize=: {type(config).__name__} fixes the activations' scales for all ticks, and cannot be saved: pass 'int8', "
            "which measures them at each call."
        )
    if isinstance(config, AOBaseConfig):
        return config
    raise ConfigError(
        f"quantize=: {config!r} must be one of {', '.join(NAMED)}, a torchao config, a BitsAndBytesConfig, or a dict of these."
    )
