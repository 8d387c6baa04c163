"""load_language_model(): a checkpoint as a model that `accelerate` and `generate` take."""

from os import PathLike
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import cached_file

from diffcache.language.probing import probe_token_shift
from diffcache.language.remote_code import complete, is_remote, transformers_4
from diffcache.schedulers.errors import ConfigError, TargetError
from diffcache.schedulers.numbers_given import is_count

_HUB = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
"""Options that say where files are found."""


def load_language_model(
    path: str | PathLike[str],
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
    token_shift: int | None = None,
    block_attention: int | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Loads a masked-diffusion language model and its tokenizer, also where its modelling files were written for transformers 4.

    Args:
        path: a folder, or a repository on the hub.
        dtype: of the weights; "auto" as they are stored.
        device: where the model goes once it is loaded; None leaves it where `options` put it (CPU without `device_map`).
        trust_remote_code: run the modelling files that come with the checkpoint. LLaDA, LLaDA-MoE, LLaDA2, Dream, DiffuCoder,
            SDAR, Fast-dLLM v2 and MMaDA need it.
        token_shift: 1 where row i of the logits predicts token i + 1, 0 where it predicts token i. None: what is known of
            the family, unless the model clearly fills in an English text the other way. Kept as `model.config.token_shift`.
        block_attention: tokens of a block, where a token sees its block and what is before it, counted from position 0.
            None: what is known of the family, else full attention. Kept as `model.config.block_attention`.
        **options: of `from_pretrained`, such as `device_map`, `quantization_config`, `attn_implementation`, `revision`.

    Returns:
        The model in evaluation mode, and its tokenizer; None where the checkpoint has none.

    Raises:
        ConfigError: a `token_shift` or `block_attention` out of range.
        TargetError: a path that is none; a configuration that names no class that transformers knows.
        OSError, ValueError: of transformers, where files are missing or remote code is not trusted.
    """
    if token_shift not in (None, 0, 1):
        raise ConfigError(f"token_shift={token_shift!r}: give 0 or 1.")
    if block_attention is not None and not is_count(block_attention):
        raise ConfigError(
            f"block_attention={block_attention!r}: give the number of tokens of a block, 1 or more."
        )
    if not isinstance(path, (str, PathLike)) or not str(path):
        raise TargetError(
            f"load_language_model takes a folder or the name of a repository on the hub, not {path!r}."
        )
    hub = {name: options[name] for name in _HUB if name in options}
    with transformers_4():
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, **hub)
        remote = {"trust_remote_code": True} if getattr(config, "auto_map", None) else {}
        model = _loader(config).from_pretrained(path, config=config, dtype=dtype, **remote, **options)
        tokenizer = _tokenizer(path, trust_remote_code, hub)
    if is_remote(model):
        complete(model)
    for name, value in (("token_shift", token_shift), ("block_attention", block_attention)):
        if value is not None:
            setattr(model.config, name, value)
    model.eval()
    model = model if device is None else model.to(device)
    if tokenizer is not None and token_shift is None:
        probe_token_shift(model, tokenizer)
    return model, tokenizer


def _loader(config: Any) -> Any:
    """The class whose `from_pretrained` returns the model with its output layer."""
    if remote := getattr(config, "auto_map", None):
        return AutoModelForCausalLM if "AutoModelForCausalLM" in remote else AutoModel
    name = (config.architectures or ["no class"])[0]
    found = getattr(transformers, name, None)
    if found is None:
        raise TargetError(
            f"the checkpoint's configuration names {name}, which transformers {transformers.__version__} does not have: "
            "load it as its authors say, and pass the model to accelerate."
        )
    return found


def _tokenizer(path: str | PathLike[str], trust_remote_code: bool, hub: dict[str, Any]) -> Any:
    found = cached_file(path, "tokenizer_config.json", _raise_exceptions_for_missing_entries=False, **hub)
    return (
        None
        if found is None
        else AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code, **hub)
    )
