"""What identifies a denoiser in a saved schedule: its class, and a hash of its configuration."""

import hashlib
import json

from torch import nn

from diffcache.hooks.class_swap import base_class
from diffcache.schedulers.schedule import Model


def model_of(module: nn.Module) -> Model:
    """Class name and hash of the configuration, or of the parameters' shapes where the module has no configuration."""
    config = getattr(module, "config", None)
    if isinstance(config, dict):
        content = {
            key: value
            for key, value in config.items()
            if not key.startswith("_") and key != "quantization_config"
        }
    else:
        content = {name: list(parameter.shape) for name, parameter in module.named_parameters()}
    text = json.dumps(content, sort_keys=True, default=str)
    return Model(base_class(type(module)).__name__, hashlib.sha256(text.encode()).hexdigest()[:16])
