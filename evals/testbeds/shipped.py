"""The testbed that comes with the package: `emoji`, the sd3 testbed with weights of six bits, in one file.

Each weight matrix is kept as whole numbers with a scale for each row, and is float16 again once it is read. Its pictures are those of
sd3 but for details; it is there to be looked at, and nothing is measured on it. `python scripts/pack_testbed.py` made the file.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

FILE = Path(__file__).resolve().parent / "emoji.zip"
NAME = "emoji"
SCALE = ".scale"
LEVELS = {"transformer": 27}
"""The largest whole number of a component's weights."""
OTHERS = 63
PROMPTS = (
    "cat face on blue",
    "red apple on white",
    "rocket on dark",
    "panda face on pink",
    "smiling face with sunglasses on white",
    "red heart on white",
    "airplane on blue",
    "lobster on white",
)
"""What the demonstration draws."""


def pack(folder: Path, file: Path = FILE) -> None:
    """Writes a saved pipeline into a file, its matrices in few bits."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as packed:
        for path in sorted(
            path for path in folder.rglob("*") if path.suffix in (".json", ".safetensors", ".txt")
        ):
            name, content = path.relative_to(folder).as_posix(), path.read_bytes()
            if path.suffix == ".safetensors":
                content = save(dict(_rounded(load(content), LEVELS.get(path.parent.name, OTHERS))))
            if path.suffix == ".json" and "tokenizer.json" not in name:
                content = _readable_before_5(json.loads(content))
            packed.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_LZMA)  # without a date


def load_shipped(dtype: dict[str, Any]) -> Any:
    """The pipeline.

    Args:
        dtype: keyword arguments of `from_pretrained`.
    """
    from diffusers import DiffusionPipeline

    with TemporaryDirectory() as folder, zipfile.ZipFile(FILE) as packed:
        for name in packed.namelist():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            content = packed.read(name)
            weights = name.endswith(".safetensors")
            path.write_bytes(save(_read(load(content)), {"format": "pt"}) if weights else content)
        return DiffusionPipeline.from_pretrained(folder, local_files_only=True, **dtype)


def _readable_before_5(data: dict[str, Any]) -> bytes:
    """A configuration that Transformers 4 reads too: tokenizers by the names that both versions have."""
    data.pop("extra_special_tokens", None)
    text = json.dumps(data, indent=1)
    return re.sub(r'"(CLIP|T5)Tokenizer"', r'"\1TokenizerFast"', text).encode()


def _rounded(weights: dict[str, Tensor], levels: int) -> Iterator[tuple[str, Tensor]]:
    for name, weight in weights.items():
        if weight.ndim < 2 or weight.numel() < 1024:
            yield name, weight.half()
            continue
        rows = weight.float().flatten(1)
        scale = (rows.abs().amax(1, keepdim=True) / levels).half().float().clamp_min(1e-7)
        yield name, (rows / scale).round().clamp(-127, 127).to(torch.int8).view(weight.shape)
        yield f"{name}{SCALE}", scale.half()


def _read(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    def whole(name: str, weight: Tensor) -> Tensor:
        scale = weights.get(f"{name}{SCALE}")
        return weight if scale is None else (weight.flatten(1) * scale.float()).view(weight.shape).half()

    return {name: whole(name, weight) for name, weight in weights.items() if not name.endswith(SCALE)}
