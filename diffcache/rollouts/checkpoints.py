"""Checkpoints of causal Wan students (Self-Forcing, CausVid, LongLive, Rolling Forcing) into Diffusers' own transformer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from diffcache.schedulers.errors import ScheduleError

PARTS = ("generator_ema", "generator", "state_dict", "model")
"""Where such files keep the weights, the averaged ones first."""
PREFIXES = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
"""What training leaves in names, anywhere."""


def causal_weights(path: Path | str) -> dict[str, Tensor]:
    """The weights of a causal Wan, under the names of Diffusers' `WanTransformer3DModel`.

    Args:
        path: a `.pt` file (read with `weights_only=True`: no code in it is run), or a `.safetensors` file. Names may be those of
            the original Wan, with the prefixes of training, or Diffusers'.

    Raises:
        ScheduleError: it cannot be read, or holds no weights of a Wan.
    """
    found = _weights_in(_read(Path(path)))
    if not any(".self_attn." in name for name in found):
        return found
    from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers

    converted: dict[str, Tensor] = convert_wan_transformer_to_diffusers(found)
    return converted


def load_causal_weights(transformer: Any, path: Path | str) -> None:
    """Loads such a checkpoint into a transformer of the same shape; all weights or none.

    Raises:
        ScheduleError: as `causal_weights`, and where names or shapes do not fit the transformer.
    """
    weights, own = causal_weights(path), transformer.state_dict()
    missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    other = [name for name in own.keys() & weights.keys() if own[name].shape != weights[name].shape]
    for what, names in (("lacks", missing), ("has the unknown", unknown), ("has another shape of", other)):
        if names:
            raise ScheduleError(
                f"{path} {what} {names[0]} ({len(names)} in all): load it into the transformer that it was trained from."
            )
    transformer.load_state_dict(weights)


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError) as error:
        raise _unreadable(path, error) from error
    except Exception as error:  # pickle's own errors, which share no base but Exception
        if type(error).__module__ in ("_pickle", "pickle"):
            raise _unreadable(path, error) from error
        raise


def _unreadable(path: Path, error: Exception) -> ScheduleError:
    first = str(error).partition("\n")[0]
    return ScheduleError(
        f"{path} cannot be read as a checkpoint ({first}): give a .pt or .safetensors file of weights."
    )


def _weights_in(read: Any) -> dict[str, Tensor]:
    part = next((read[name] for name in PARTS if isinstance(read, Mapping) and name in read), read)
    if (
        not isinstance(part, Mapping)
        or not part
        or not all(isinstance(value, Tensor) for value in part.values())
    ):
        raise ScheduleError(
            f"the checkpoint holds no weights: they are looked for in {', '.join(PARTS)}, or at its top."
        )
    return {_plain(name): value for name, value in part.items()}


def _plain(name: str) -> str:
    for prefix in PREFIXES:
        name = name.replace(prefix, "")
    return name.removeprefix("model.")
