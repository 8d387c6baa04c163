"""Which of torchao's configs each linear layer of a denoiser gets."""

import re
from collections.abc import Mapping
from typing import Any

from diffcache.schedulers.errors import ConfigError

NAMED = {
    "int8": "Int8DynamicActivationInt8WeightConfig",
    "int8-weight-only": "Int8WeightOnlyConfig",
    "float8": "Float8DynamicActivationFloat8WeightConfig",
    "float8-weight-only": "Float8WeightOnlyConfig",
}
"""torchao's configs by our names; what is not "weight-only" quantises the activations too, at each call."""

ASYMMETRIC = frozenset({"int8"})
"""Their activations get a zero point beside the scale, for each token. A token's values reach farther on one side of zero than
on the other (ten times as far inside feed-forwards), so that a symmetric range would waste half of its steps."""

REST = "_default"
"""Key of overrides for the layers that no pattern names, as in torchao's `FqnToConfig`."""

EXEMPT = re.compile(r"norm|emb|modulation|_mod(\.|$)|lora_")
"""Layers whose outputs scale and shift every token, so that their errors reach everywhere; and adapters."""

ENDS = "at an end of the denoiser"
MODULATES = "embeds or modulates"
NOT_ASKED = "not asked for"


class Rules:
    """Which of torchao's configs each linear layer gets.

    Args:
        quantize: what `accelerate` is given: a name of `NAMED`, a torchao config, Diffusers' `TorchAoConfig`, or a dict of
            these (None leaves a layer as it is) by regular expressions that are searched in a layer's path, first match
            first, with "_default" for the others.

    Raises:
        ConfigError: none of these, or torchao is not installed.
    """

    def __init__(self, quantize: Any) -> None:
        given = quantize if isinstance(quantize, Mapping) else _as_rules(quantize)
        self.default = _config(given.get(REST))
        self.patterns = {
            _pattern(pattern): _config(config) for pattern, config in given.items() if pattern != REST
        }

    def config_for(self, path: str, *, at_end: bool) -> tuple[Any, str]:
        """The layer's config, None to leave it as it is, and why."""
        for pattern, config in self.patterns.items():
            if pattern.search(path):
                return config, NOT_ASKED
        if at_end or EXEMPT.search(path):
            return None, ENDS if at_end else MODULATES
        return self.default, NOT_ASKED


def _as_rules(quantize: Any) -> dict[str, Any]:
    """What is no dict as rules: `TorchAoConfig` may name modules to leave out, `FqnToConfig` has a config for each layer."""
    left = getattr(quantize, "modules_to_not_convert", None) or ()
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


def _config(config: Any) -> Any:
    """torchao's config for one layer; None to leave it as it is."""
    if config is None:
        return None
    try:
        import torchao.quantization as torchao
        from torchao.core.config import AOBaseConfig
    except ImportError as error:
        raise ConfigError("quantize= needs torchao: pip install 'diffcache[quant]'.") from error
    if isinstance(config, str) and config in NAMED:
        options = {"act_mapping_type": torchao.MappingType.ASYMMETRIC} if config in ASYMMETRIC else {}
        return getattr(torchao, NAMED[config])(set_inductor_config=False, **options)  # no global setting
    if hasattr(config, "act_quant_scale"):
        raise ConfigError(
            f"quantize=: {type(config).__name__} fixes the activations' scales for all ticks, and cannot be saved: pass 'int8', "
            "which measures them at each call."
        )
    if isinstance(config, AOBaseConfig):
        return config
    raise ConfigError(
        f"quantize=: {config!r} must be one of {', '.join(NAMED)}, a torchao config, or a dict of these."
    )
