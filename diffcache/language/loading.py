"""load_language_model(): a checkpoint as a model that `accelerate` and `generate` take."""

from os import PathLike
from pathlib import Path
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
        ConfigError: a `token_shift` or `block_attention` out of range; a `dtype` or `device` that there is not.
        TargetError: a path where no model's configuration is, such as a pipeline's folder; a configuration that names no class
            that transformers knows.
        OSError, ValueError: of transformers, where weights are missing or remote code is not trusted.
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
    _check_place(dtype, device)
    hub = {name: options[name] for name in _HUB if name in options}
    with transformers_4():
        config = _configuration(path, trust_remote_code, hub)
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


def _check_place(dtype: Any, device: Any) -> None:
    """Refuses a precision or a device that there is not, before anything is read."""
    known = isinstance(getattr(torch, dtype, None) if isinstance(dtype, str) else dtype, torch.dtype)
    if not known and not isinstance(dtype, dict) and dtype not in ("auto", None):
        raise ConfigError(f'dtype={dtype!r}: give "auto", or one of PyTorch\'s, such as "bfloat16".')
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(
            f'device={device!r} is not here ({str(error).splitlines()[0]}): give one that PyTorch has, such as "cpu".'
        ) from error


def _configuration(path: str | PathLike[str], trust_remote_code: bool, hub: dict[str, Any]) -> Any:
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, **hub)
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            raise
        if (Path(path) / "model_index.json").is_file():
            raise TargetError(
                f"{str(path)!r} is a pipeline of Diffusers: load it with DiffusionPipeline.from_pretrained, and give it to accelerate."
            ) from error
        raise TargetError(
            f"no language model can be read from {str(path)!r} ({str(error).splitlines()[0]}): give a folder that has its "
            "config.json, or the name of a repository on the hub."
        ) from error


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
