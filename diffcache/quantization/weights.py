"""Quantised weights: a denoiser's linear layers through torchao or bitsandbytes, and the originals put back."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

from diffcache.config import CacheConfig
from diffcache.discovery.units import block_counts
from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import components_of, is_pipeline
from diffcache.host.weight_formats import is_quantised, quantization_of, weight_bytes
from diffcache.prediction.correctors import Repair
from diffcache.quantization.folding import can_fold, fold
from diffcache.quantization.rules import NOT_ASKED, Rules, asked_of, named_components
from diffcache.quantization.with_bitsandbytes import converted, is_bitsandbytes, told
from diffcache.schedulers.errors import ConfigError, ScheduleError

logger = logging.getLogger("diffcache")

REFUSALS = (AssertionError, ValueError, NotImplementedError, ImportError)
"""How torchao says that a layer's shape, the device or a missing package does not allow something."""


class Original(NamedTuple):
    """A layer, and the weight that it had."""

    layer: nn.Linear
    weight: nn.Parameter


@dataclass
class Quantised:
    """What was done to one denoiser.

    Attributes:
        layers: paths of the quantised layers.
        left: why other linear layers, and all convolutions, were left as they are, by path.
        before, after: bytes of its weights.
        originals: the weights that were replaced, in CPU memory, by path; empty where they were not kept.
        repairs: what has been folded into its layers, by path.
        undo: takes that out again.
        config: the denoiser's configuration as it was, of a Diffusers model.
    """

    layers: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    before: int = 0
    after: int = 0
    originals: dict[str, Original] = field(default_factory=dict, repr=False)
    repairs: Mapping[str, Repair] = field(default_factory=dict, repr=False)
    undo: list[Callable[[], None]] = field(default_factory=list, repr=False)
    config: Any = field(default=None, repr=False)

    def __str__(self) -> str:
        reasons: dict[str, int] = {}
        for reason in self.left.values():
            reasons[reason] = reasons.get(reason, 0) + 1
        left = "".join(f"; {count} left: {reason}" for reason, count in reasons.items())
        return f"{len(self.layers)} layers, {self.before / 2**20:.1f} -> {self.after / 2**20:.1f} MiB{left}"


quantised: "WeakKeyDictionary[nn.Module, Quantised]" = WeakKeyDictionary()
"""Denoisers that were quantised here; copies of them are not."""


def quantised_parts(target: Any, denoisers: Mapping[str, nn.Module], quantize: Any) -> dict[str, nn.Module]:
    """What `quantize` is about: the denoisers, and other components of a pipeline that it names, such as text encoders."""
    components = components_of(target) if is_pipeline(target) else {}
    others = {
        name: components[name]
        for name in named_components(quantize)
        if name not in denoisers and isinstance(components.get(name), nn.Module)
    }
    return {**denoisers, **each_uncompiled(others)}


@contextmanager
def quantising(parts: Mapping[str, nn.Module], quantize: Any, keep_original: bool) -> Iterator[None]:
    """Quantises these parts of a pipeline, and puts the originals back if that, or what is done inside, fails.

    A part that is quantised already is left alone, which is logged.

    Args:
        parts: by name.
        quantize: as for `accelerate`.
        keep_original: keep the replaced weights in CPU memory, for `put_back`. Inside the context they are always kept.

    Raises:
        ConfigError: not a way to quantise, or there is no layer that torchao quantises so.
    """
    asked = {name: asked_of(quantize, name) for name in parts}
    rules = {name: Rules(its) for name, its in asked.items() if its is not None}
    if not rules:
        raise ConfigError(
            f"quantize=: it names nothing of this target: name {', '.join(parts)} or another network of the pipeline."
        )
    done: list[nn.Module] = []
    try:
        for name, module in parts.items():
            if name not in rules:
                continue
            if any(parameter.device.type == "meta" for parameter in module.parameters()):
                raise ConfigError(
                    f"quantize=: the weights of {name} are not here, since sequential offload is on: quantise first, and offload "
                    "then."
                )
            known = quantization_of(module)
            if known is not None:
                logger.warning("%s is quantised already (%s): its weights are left as they are.", name, known)
                continue
            done.append(module)
            quantised[module] = Quantised(before=weight_bytes(module))
            _quantise(module, rules[name], quantised[module])
            logger.info("%s quantised: %s", name, quantised[module])
        yield
    except BaseException:
        for module in done:
            put_back(module)
        raise
    for module in done:
        if not keep_original:
            quantised[module].originals.clear()


def put_back(module: nn.Module) -> bool:
    """Gives a denoiser that was quantised here its own weights back, to the bit; False where they were not kept.

    The weights come to the device where the denoiser is now, in the dtype that they had: cast it again if it was cast since.
    """
    found = quantised[module]
    if found.layers and not found.originals:
        return False
    refold(module, {})
    for path, (layer, weight) in found.originals.items():
        now: Any = module.get_submodule(path)
        device = now.weight.device
        here = weight.device == device
        layer.weight = weight if here else nn.Parameter(weight.to(device), weight.requires_grad)
        if now is not layer:
            _put_in_place_of(module, now, layer)
    if found.config is not None:
        module._internal_dict = found.config
        del module.hf_quantizer
    del quantised[module]
    return True


@contextmanager
def repaired(denoisers: Mapping[str, nn.Module], config: CacheConfig) -> Iterator[None]:
    """Folds a method's repairs into the weights of denoisers that were quantised here, in place of those folded in before.
    If that fails, or what is done inside, the repairs from before are put back.

    Raises:
        ScheduleError: a layer that is not there, or of another size.
    """
    ours = {name: module for name, module in denoisers.items() if module in quantised}
    before = {name: quantised[module].repairs for name, module in ours.items()}
    try:
        for name, module in ours.items():
            refold(module, config.repairs(name, quantization_of(module)))
        yield
    except BaseException:
        for name, module in ours.items():
            refold(module, before[name])
        raise


def refold(module: nn.Module, repairs: Mapping[str, Repair]) -> None:
    """Folds repairs, by path of the layer, into a denoiser's weights in place of those that are in them."""
    found = quantised[module]
    while found.undo:
        found.undo.pop()()
    layers = dict(module.named_modules())
    found.repairs = repairs
    for path, repair in repairs.items():
        layer = layers.get(path)
        if layer is None or not can_fold(layer) or len(layer.bias) != len(repair[0]):
            raise ScheduleError(f"corrections: there is no layer {path} that they fit.")
        found.undo.append(fold(layer, repair))


def _quantise(module: nn.Module, rules: Rules, result: Quantised) -> None:
    """Quantises one denoiser and notes in `result`, as it goes, what was replaced."""
    has_blocks = bool(block_counts(module))
    configs = {}
    for path, layer in list(module.named_modules()):
        if not isinstance(layer, nn.Linear):
            if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
                result.left[path] = f"{rules.library} has no convolutions"
            continue
        config, reason = rules.config_for(path, at_end=has_blocks and "." not in path)
        if is_bitsandbytes(config):
            _swap(module, path, layer, config, result)
        elif config is not None:
            reason = _replace(layer, path, config, result)
        if path in result.layers:
            configs[path] = config
        else:
            result.left[path] = reason
    if not configs:
        reasons = "; ".join(sorted(set(result.left.values()))) or "it has no linear layer"
        instead = "'int8' runs everywhere"
        if rules.default is None and NOT_ASKED in result.left.values():
            instead = 'name layers by a pattern that is found in their paths, or all others by "_default"'
        raise ConfigError(
            f"quantize=: no layer of {type(module).__name__} can be quantised here ({reasons}): {instead}."
        )
    _tell_diffusers(module, configs, result)
    result.after = weight_bytes(module)


def _replace(layer: nn.Linear, path: str, config: Any, result: Quantised) -> str:
    """Quantises one layer; where torchao refuses it, or hands it back unchanged, the layer stays and the reason is returned."""
    from torchao.quantization import quantize_

    original, reason = layer.weight, "torchao leaves its shape or dtype as it is"
    try:
        quantize_(layer, config)
    except REFUSALS as error:
        layer.weight = original
        reason = f"torchao: {str(error).splitlines()[0]}" if str(error) else "torchao refuses its shape"
    if is_quantised(layer.weight):
        layer.__dict__.pop("extra_repr", None)  # torchao's, which cannot be pickled
        result.originals[path] = Original(layer, _on_cpu(original))
        result.layers.append(path)
    return reason


def _swap(module: nn.Module, path: str, layer: nn.Linear, config: Any, result: Quantised) -> None:
    """Puts a layer of bitsandbytes in a layer's place."""
    _put_in_place_of(module, layer, converted(layer, config))
    layer.weight = _on_cpu(layer.weight)
    result.originals[path] = Original(layer, layer.weight)
    result.layers.append(path)


def _put_in_place_of(module: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replaces a layer under every name that the module holds it by."""
    for path in [path for path, each in module.named_modules(remove_duplicate=False) if each is old]:
        module.set_submodule(path, new)


def _on_cpu(weight: Any) -> nn.Parameter:
    return weight if weight.device.type == "cpu" else nn.Parameter(weight.cpu(), weight.requires_grad)


def _tell_diffusers(module: nn.Module, configs: dict[str, Any], result: Quantised) -> None:
    """Makes a Diffusers model one that was loaded with a config, so that it saves and loads as such."""
    from diffusers import ModelMixin
    from diffusers.quantizers.auto import DiffusersAutoQuantizer

    if not isinstance(module, ModelMixin):
        return
    config = _one_config(
        configs, [path for path, layer in module.named_modules() if type(layer) is nn.Linear]
    )
    quantizer = DiffusersAutoQuantizer.from_config(config)
    if not is_bitsandbytes(config):  # its quantizer refuses a machine without GPU, on which bitsandbytes runs
        quantizer.validate_environment()
    result.config = module._internal_dict
    module.hf_quantizer = quantizer
    module.register_to_config(quantization_config=config)


def _one_config(configs: Mapping[str, Any], others: list[str]) -> Any:
    """The config of Diffusers that says of each layer what became of it."""
    first = next(iter(configs.values()))
    if is_bitsandbytes(first):
        return told(first, others)
    from collections import OrderedDict

    from diffusers import TorchAoConfig
    from torchao.quantization import FqnToConfig

    return TorchAoConfig(FqnToConfig(OrderedDict(configs)))
