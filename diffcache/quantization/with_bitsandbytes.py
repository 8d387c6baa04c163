"""Linear layers through bitsandbytes: what loading a model with its config would have made of them."""

from copy import copy
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import nn

from diffcache.schedulers.errors import ConfigError


def is_bitsandbytes(config: Any) -> bool:
    """Whether it is a `BitsAndBytesConfig`, of Diffusers or of Transformers."""
    return type(config).__name__ == "BitsAndBytesConfig"


def checked(config: Any) -> Any:
    """The config, if it can be served here.

    Raises:
        ConfigError: bitsandbytes is not installed, or the config asks for neither eight nor four bits.
    """
    if find_spec("bitsandbytes") is None:
        raise ConfigError(
            "quantize= with a BitsAndBytesConfig needs bitsandbytes: pip install bitsandbytes, or pass 'int8' here."
        )
    if not config.is_quantizable():
        raise ConfigError(
            "quantize=: this BitsAndBytesConfig asks for nothing: pass load_in_4bit=True or load_in_8bit=True."
        )
    return config


def converted(layer: nn.Linear, config: Any) -> nn.Module:
    """A layer of bitsandbytes with this layer's weights, on its device. It has the same bias; the layer stays as it is."""
    bnb = import_module("bitsandbytes.nn")
    sizes, has_bias = (layer.in_features, layer.out_features), layer.bias is not None
    made: Any
    if config.load_in_8bit:
        wide = config.llm_int8_has_fp16_weight
        made = bnb.Linear8bitLt(*sizes, has_bias, has_fp16_weights=wide, threshold=config.llm_int8_threshold)
        made.weight = bnb.Int8Params(layer.weight.detach(), requires_grad=False, has_fp16_weights=wide)
    else:
        options = {
            "compress_statistics": config.bnb_4bit_use_double_quant,
            "quant_type": config.bnb_4bit_quant_type,
            "quant_storage": config.bnb_4bit_quant_storage,
        }
        made = bnb.Linear4bit(*sizes, has_bias, config.bnb_4bit_compute_dtype, **options)
        made.weight = bnb.Params4bit(layer.weight.detach(), requires_grad=False, **options)
    made.bias = layer.bias
    placed: nn.Module = made.to(layer.weight.device)  # this quantises
    return placed.train(layer.training)


def told(config: Any, left: list[str]) -> Any:
    """A copy of the config that leaves these layers out, so that the model loads as it is now."""
    copied = copy(config)
    copied.llm_int8_skip_modules = left or None
    return copied
