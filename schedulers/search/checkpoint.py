"""Checkpoints of searches and trainings: settings and tensors in one file, written as a whole or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.whole_files import written_whole


def save_checkpoint(
    path: Path, kind: str, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> None:
    """Writes a checkpoint. If this is interrupted, the file that was there before stays.

    Args:
        path: of the file.
        kind: what it is a checkpoint of ("search", "router").
        tensors: by name.
        settings: anything that JSON can hold.
    """
    copies = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    with written_whole(path) as part:
        save_file(copies, part, {kind: json.dumps(settings)})


def load_checkpoint(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the settings of a checkpoint.

    Raises:
        ScheduleError: the file is damaged, or a checkpoint of another kind.
    """
    try:
        with safe_open(path, "pt") as file:
            settings = json.loads((file.metadata() or {})[kind])
            return {name: file.get_tensor(name) for name in file.keys()}, settings  # noqa: SIM118 (not a dict)
    except (SafetensorError, KeyError) as error:
        raise ScheduleError(f"{path}: not a checkpoint of a {kind}, or damaged; start a new one.") from error
