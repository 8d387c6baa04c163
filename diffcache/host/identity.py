"""What identifies a denoiser in a saved schedule or config: its class, and a hash of its configuration."""

import hashlib
import json
from collections.abc import Mapping

from torch import nn

from diffcache.hooks.class_swap import base_class
from diffcache.schedulers.errors import ScheduleError
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


def refuse_others(
    what: str, made_for: Mapping[str, tuple[str, str]], denoisers: Mapping[str, nn.Module]
) -> None:
    """Refuses to attach what was made for other denoisers than these.

    Args:
        what: "schedule" or "config".
        made_for: class and hash of the configuration of the denoisers that it was made for, by name.
        denoisers: by name.

    Raises:
        ScheduleError: one of them is not here, or is another.
    """
    for site, (name, config) in made_for.items():
        if site not in denoisers:
            raise ScheduleError(
                f"the {what} is for {site!r}, and this target has {', '.join(denoisers)} only."
            )
        here = model_of(denoisers[site])
        if (here.name, here.config) != (name, config):
            differs = f"{name}, not {here.name}" if here.name != name else "another configuration"
            raise ScheduleError(f"the {what}'s {site} is of {differs}: record one on this model.")
