"""The acceptance of a testbed of real pictures: samples, the fact sheet and the hashes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from torch import Tensor

from diffcache.evals.testbeds import fashion_mnist, zoo
from diffcache.evals.training.accept import write_hashes
from diffcache.evals.training.grids import save_grid

_SAMPLES, _COLUMNS = 16, 8
_TEACHERS = {"turbo": "sd3", "kontext_turbo": "kontext"}
_EMOJI = (
    "drawings of Noto Emoji (SIL Open Font License 1.1, its tools Apache 2.0), 64 pixels, as the npm package "
    "`emoji-datasource-google` 16.0.0 (MIT) has them; `evals/testbeds/emoji.txt` lists which and their names"
)
_FASHION = (
    "Fashion-MNIST's 60,000 training photographs (Zalando SE, MIT), Debian package `dataset-fashion-mnist`"
)


@torch.no_grad()
def accept(name: str, folder: Path, facts: dict[str, Any]) -> None:
    """Writes `samples.png` and `README.md` of a testbed to judge on, and updates the table of hashes."""
    pipe = zoo.load(name)
    asked = shown_prompts(name)
    started = time.perf_counter()
    call = zoo.call_for(name, asked, range(len(asked)), zoo.STEPS[name])
    pictures: Tensor = pipe(**call)[0]
    rate = zoo.STEPS[name] / (time.perf_counter() - started)
    if "image" in call:
        pictures = _below(call["image"], pictures)
    save_grid(pictures, folder / "samples.png", _COLUMNS, zoom=128 // pictures.shape[-1])
    (folder / "README.md").write_text(_sheet(name, pipe, folder, facts, rate))
    write_hashes(folder.parent)


def shown_prompts(name: str) -> list[Any]:
    """The prompts of `samples.png`: the first held-out ones, or every class in turn; empty ones of a testbed without prompts."""
    if name in zoo.CLASSES:
        return [i % zoo.CLASSES[name] for i in range(_SAMPLES)]
    return zoo.prompts(name, _SAMPLES, "heldout")


def _below(references: Tensor, pictures: Tensor) -> Tensor:
    """Each row of references, and the row of their pictures below it."""
    rows = zip(torch.split(references, _COLUMNS), torch.split(pictures, _COLUMNS), strict=True)
    return torch.cat([part for row in rows for part in row])


def _sheet(name: str, pipe: Any, folder: Path, facts: dict[str, Any], rate: float) -> str:
    modules = {key: part for key, part in pipe.components.items() if isinstance(part, torch.nn.Module)}
    sizes = ", ".join(f"{key} {sum(p.numel() for p in part.parameters()):,}" for key, part in modules.items())
    megabytes = sum(path.stat().st_size for path in folder.rglob("*.safetensors")) / 1e6
    versions = f"torch {torch.__version__}, diffusers {diffusers.__version__}, transformers {transformers.__version__}"
    asked = shown_prompts(name)
    guidance = zoo.sample_call(name, 0, n=1).get("guidance_scale", 1.0)
    guided = f"{guidance:g}" if guidance > 1 else "none"
    earlier = f" ({facts['earlier']})" * bool(facts["earlier"])
    origin = f"distilled from the testbed {_TEACHERS[name]}" if name in _TEACHERS else "trained from nothing"
    lines = [
        f"# Testbed {name}",
        "",
        f"A `{type(pipe).__name__}` {origin}. Nothing is tuned on it: it is there to judge.",
        "Its weights are in float16 (text encoders: float32); load it with `diffcache.evals.testbeds.zoo.load` or `DiffusionPipeline.from_pretrained`.",
        "",
        "| fact | value |",
        "|---|---|",
        f"| data | {_FASHION if name in zoo.OF_FASHION else _EMOJI} |",
        f"| parameters | {sizes} |",
        f"| weight files | {megabytes:.1f} MB |",
        f"| noise scheduler | {type(pipe.scheduler).__name__}, as its pipeline ships it |",
        f"| predicts | {_prediction(pipe)} |",
        f"| steps, guidance | {zoo.STEPS[name]}, {guided} |",
        f"| trained | {facts['iterations']} iterations, {facts['seconds']} CPU seconds{earlier} |",
        f"| seed | {facts['seed']} |",
        f"| commands | {' ; '.join(f'`{command}`' for command in facts['commands'])} |",
        f"| versions | {versions} |",
        f"| speed at batch {len(asked)}, one CPU thread | {rate:.1f} denoising steps per second |",
        "",
        *_caption(name, asked),
        "",
    ]
    return "\n".join(lines)


def _caption(name: str, asked: list[Any]) -> list[str]:
    if name in zoo.UNCONDITIONAL:
        return [f"`samples.png` shows seeds 0 to {len(asked) - 1}, none of them chosen."]
    shown = [fashion_mnist.NAMES[i] for i in asked] if name in zoo.CLASSES else asked
    below = ", and each row below that of its references" * (name in zoo.OF_EDITS)
    first = f"`samples.png` shows these prompts from seeds 0, 1, ..., none of them chosen, row by row{below}:"
    return [first, "", *(f"{i + 1}. {text}" for i, text in enumerate(shown))]


def _prediction(pipe: Any) -> str:
    denoiser = getattr(pipe, "transformer", None) or pipe.unet
    learned = denoiser.config.out_channels == 2 * denoiser.config.in_channels
    kind = str(pipe.scheduler.config.get("prediction_type", "velocity (flow matching)"))
    return kind.replace("epsilon", "noise") + (" and the variance of a step" if learned else "")
