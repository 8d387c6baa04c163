"""The acceptance of a finished testbed: samples, class accuracy, the fact sheet and the hashes."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from torch import Tensor

from diffcache.evals.testbeds import procedural, zoo
from diffcache.evals.testbeds.shape_classifier import ShapeColourClassifier
from diffcache.evals.training.grids import save_grid

_SAMPLES = 64
_CHUNK = 16


@torch.no_grad()
def sample(name: str, steps: int, n: int = _SAMPLES, seed: int = 0) -> tuple[Tensor, Tensor, float]:
    """n samples, the classes that they should show, and the denoising steps per second at batch 16."""
    pipe = zoo.load(name)
    asked = zoo.prompts(name, n, "heldout")
    outputs, started = [], time.perf_counter()
    for first in range(0, n, _CHUNK):
        call = zoo.sample_call(name, seed + first, steps, n=_CHUNK)
        key = "class_labels" if name == "dit" else "prompt"
        outputs.append(pipe(**{**call, key: asked[first : first + _CHUNK]})[0])
    rate = steps * n / _CHUNK / (time.perf_counter() - started)
    return torch.cat(outputs), torch.tensor([zoo.label_of(name, prompt) for prompt in asked]), rate


def accuracy(pictures: Tensor, labels: Tensor) -> dict[str, float]:
    """Share of samples in which the classifier sees the class, the shape and the colour that were asked for."""
    seen = ShapeColourClassifier.load().predict(pictures)
    colours = len(procedural.COLOURS)
    return {
        "class": (seen == labels).float().mean().item(),
        "shape": (seen // colours == labels // colours).float().mean().item(),
        "colour": (seen % colours == labels % colours).float().mean().item(),
    }


def accept(name: str, folder: Path, facts: dict[str, Any]) -> None:
    """Writes `samples.png` and `README.md` of a testbed, and updates the table of hashes."""
    pictures, labels, rate = sample(name, 50)
    scores = accuracy(pictures, labels)
    if pictures.ndim == 5:
        save_grid(pictures[:16, ::2].flatten(0, 1), folder / "samples.png", columns=10)
    else:
        save_grid(pictures[:16], folder / "samples.png")
    (folder / "README.md").write_text(_sheet(name, folder, facts, scores, rate))
    write_hashes(folder.parent)
    print(name, scores, f"{rate:.1f} steps/s")


def write_hashes(root: Path) -> None:
    """Writes `HASHES.json`: the SHA-256 of every weight file under `root`."""
    hashes = {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*.safetensors"))
    }
    (root / "HASHES.json").write_text(json.dumps(hashes, indent=2) + "\n")


def _sheet(name: str, folder: Path, facts: dict[str, Any], scores: dict[str, float], rate: float) -> str:
    pipe = zoo.load(name)
    modules = {key: part for key, part in pipe.components.items() if isinstance(part, torch.nn.Module)}
    sizes = ", ".join(f"{key} {sum(p.numel() for p in part.parameters()):,}" for key, part in modules.items())
    megabytes = sum(path.stat().st_size for path in folder.rglob("*.safetensors")) / 1e6
    versions = f"torch {torch.__version__}, diffusers {diffusers.__version__}, transformers {transformers.__version__}"
    asked = zoo.prompts(name, 16, "heldout")
    shown = [procedural.class_name(p) for p in asked] if name == "dit" else asked
    read = ", ".join(f"{key} {score:.2f}" for key, score in scores.items())
    commands = " ; ".join(f"`{command}`" for command in facts["commands"])
    frames = " (every second frame, two clips a row)" if name == "wan" else ""
    lines = [
        f"# Testbed {name}",
        "",
        f"A `{type(pipe).__name__}` trained from nothing on the procedural data of `evals/testbeds/procedural.py`.",
        "Its weights are in float16 (text encoders: float32); load it with `diffcache.evals.testbeds.zoo.load` or `DiffusionPipeline.from_pretrained`.",
        "",
        "| fact | value |",
        "|---|---|",
        f"| parameters | {sizes} |",
        f"| weight files | {megabytes:.1f} MB |",
        f"| noise scheduler | {type(pipe.scheduler).__name__} |",
        f"| trained | {facts['iterations']} iterations, {facts['seconds']} CPU seconds ({facts['earlier']}) |",
        f"| seed | {facts['seed']} |",
        f"| commands | {commands} |",
        f"| versions | {versions} |",
        f"| accuracy at 50 steps, {_SAMPLES} held-out prompts | {read} |",
        f"| speed at batch {_CHUNK}, one CPU thread | {rate:.1f} denoising steps per second |",
        "",
        *(f"{note}\n" for note in facts.get("notes", [])),
        "The accuracy is what the classifier in `evals/testbeds/classifier` reads from the samples. `samples.png`",
        f"shows the first answers of that measurement{frames}, row by row:",
        "",
        *(f"{i + 1}. {text}" for i, text in enumerate(shown)),
        "",
    ]
    return "\n".join(lines)
