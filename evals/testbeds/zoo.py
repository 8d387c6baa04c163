"""The testbeds: tiny trained pipelines, their prompts, and the arguments to call them with."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers import DiffusionPipeline
from packaging.version import Version

from diffcache.evals.errors import EvaluationError
from diffcache.evals.testbeds import edits, emoji, fashion_mnist, procedural, shipped, splits
from diffcache.evals.testbeds.splits import PromptSplit

FOLDER = Path(__file__).resolve().parent
DTYPE = "dtype" if Version(diffusers.__version__) >= Version("0.40.0") else "torch_dtype"
"""What `from_pretrained` of a pipeline calls the precision of its weights: Diffusers renamed it in 0.40."""
ALL = splits.FITTING + splits.JUDGING
NAMES = (*ALL, shipped.NAME)
"""With the one that comes with the package, on which nothing is measured."""
STEPS = {
    "pixart": 20,
    "sd3": 28,
    "emoji": 28,
    "sdxl": 50,
    "fashion": 50,
    "ddpm": 50,
    "kontext": 28,
    "turbo": 4,
    "kontext_turbo": 4,
    "sana": 20,
    "ddim": 50,
    "lumina2": 28,
}
"""How many steps their pipelines take unless they are told."""
CLASSES = {"dit": procedural.NUM_CLASSES, "fashion": len(fashion_mnist.NAMES)}
"""Number of classes of testbeds whose prompts are class labels."""
UNCONDITIONAL = ("ddpm", "ddim")
"""Testbeds that take no prompts: theirs are empty, and samples differ by their seeds only."""
OF_EDITS = ("kontext", "kontext_turbo")
"""Testbeds that edit a reference; their prompts are edits."""
OF_EMOJI = ("pixart", "sd3", "sdxl", "turbo", "sana", "lumina2", "emoji")
"""Testbeds whose prompts are captions of emoji."""
OF_FASHION = ("fashion", "ddpm")
"""Testbeds of Fashion-MNIST."""
_SPLITS = ("calibration", "heldout")
_TEXT_LENGTH = 20
_GUIDED = {"guidance_scale": 3.0}
_placed = {"device": "cpu"}
_EDITED = {
    "height": 64,
    "width": 64,
    "max_area": 64**2,
    "max_sequence_length": 9,
    "_auto_resize": False,
}
_CALLS: dict[str, dict[str, Any]] = {
    "dit": _GUIDED,
    "flux": {"height": 64, "width": 64, "max_sequence_length": _TEXT_LENGTH, "true_cfg_scale": 3.0},
    "wan": {"height": 32, "width": 32, "num_frames": 9, "max_sequence_length": _TEXT_LENGTH, **_GUIDED},
    "sd": {"height": 64, "width": 64, **_GUIDED},
    "pixart": {
        "guidance_scale": 4.5,
        "max_sequence_length": 8,
        "use_resolution_binning": False,
        "clean_caption": False,
    },
    "sd3": {"height": 64, "width": 64, "max_sequence_length": 8, "guidance_scale": 4.5},
    "emoji": {"height": 64, "width": 64, "max_sequence_length": 8, "guidance_scale": 4.5},
    "turbo": {"height": 64, "width": 64, "max_sequence_length": 8, "guidance_scale": 1.0},
    "sana": {
        "height": 64,
        "width": 64,
        "guidance_scale": 4.5,
        "max_sequence_length": 8,
        "use_resolution_binning": False,
        "complex_human_instruction": None,
    },
    "lumina2": {
        "height": 128,  # the pipeline takes every autoencoder to make 8 pixels one, and this one makes 4 one
        "width": 128,
        "guidance_scale": 4.0,
        "max_sequence_length": 10,
        "system_prompt": "",
    },
    "sdxl": {"height": 64, "width": 64, "guidance_scale": 5.0},
    "fashion": {"guidance_scale": 2.0},
    "ddpm": {},
    "ddim": {},
    "kontext": _EDITED,
    "kontext_turbo": _EDITED,
}


GUIDED = tuple(name for name, call in _CALLS.items() if {"guidance_scale", "true_cfg_scale"} & {*call})
"""Testbeds whose scale of guidance can be chosen; those that edit were trained without."""


def guided(name: str, call: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """A testbed's call with another scale of guidance."""
    return {**call, "true_cfg_scale" if "true_cfg_scale" in _CALLS[name] else "guidance_scale": scale}


def place(device: str) -> None:
    """Where `load` puts testbeds from now on. There they compute in full fp32, as on a CPU."""
    _placed["device"] = device
    torch.backends.cudnn.allow_tf32 = False


def load(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """Loads a testbed's pipeline, without progress bars; on the CPU, or where `place` says."""
    if name not in NAMES:
        raise ValueError(f"no testbed is called {name!r}; there are {', '.join(NAMES)}")
    with _without_bars():
        if name == shipped.NAME:
            pipe = shipped.load_shipped({DTYPE: dtype})
        else:
            folder = str(FOLDER / name)
            pipe = DiffusionPipeline.from_pretrained(folder, local_files_only=True, **{DTYPE: dtype})
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(_placed["device"])


def sample_call(
    name: str, seed: int, num_inference_steps: int = 50, n: int = 4, split: PromptSplit = "heldout"
) -> dict[str, Any]:
    """Arguments for `pipe(**call)[0]`: n pictures [n, 3, 64, 64] in [0, 1].

    For wan they are clips [n, 9, 3, 32, 32], for ddim and testbeds in `OF_FASHION` pictures [n, 3, 32, 32].

    Each sample has its own generator (seed, seed + 1, ...), so a sample does not depend on how many are drawn.
    A call uses its generators up: ask again before the next one.
    """
    return call_for(name, prompts(name, n, split), range(seed, seed + n), num_inference_steps)


def call_for(name: str, asked: list[Any], seeds: Iterable[int], num_inference_steps: int) -> dict[str, Any]:
    """Arguments for `pipe(**call)[0]` with your own prompts, and a seed for each.

    Raises:
        EvaluationError: a prompt of a testbed in `CLASSES` is no class label.
    """
    call: dict[str, Any] = {"prompt": asked}
    if name in CLASSES:
        call = {"class_labels": [_label(name, label) for label in asked]}
    if name in UNCONDITIONAL:
        call = {"batch_size": len(asked)}
    if name == "flux":
        call["negative_prompt"] = [""] * len(asked)
    if name in OF_EDITS:
        call["image"] = edits.references([edits.edited(prompt) for prompt in asked])
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    common = {"num_inference_steps": num_inference_steps, "generator": generators, "output_type": "pt"}
    return {**call, **common, **_CALLS[name]}


def prompts(name: str, n: int, split: PromptSplit = "calibration") -> list[Any]:
    """The first n prompts of a split: captions, or class labels (which repeat).

    The two splits share no prompt.
    """
    if split not in _SPLITS:
        raise ValueError(f"no split is called {split!r}; there are {', '.join(_SPLITS)}")
    part = _SPLITS.index(split)
    if name == "dit":
        labels = [(7 * i) % procedural.NUM_CLASSES for i in range(procedural.NUM_CLASSES)]
        chosen = [i for i in labels if sum(divmod(i, len(procedural.COLOURS))) % 2 == part]
        return [chosen[i % len(chosen)] for i in range(n)]
    if name == "fashion":
        chosen = [i for i in range(CLASSES[name]) if i % 2 == part]
        return [chosen[i % len(chosen)] for i in range(n)]
    if name in UNCONDITIONAL:
        return [""] * n
    if name in OF_EDITS:
        return [text for text in edits.prompts() if _part(edits.edited(text)) == part][:n]
    if name == shipped.NAME:
        return [shipped.PROMPTS[i % len(shipped.PROMPTS)] for i in range(n)]
    captions = emoji.captions() if name in OF_EMOJI else _captions(name == "wan", 4 * n + 64)
    return [caption for caption in captions if _part(caption) == part][:n]


@contextmanager
def _without_bars() -> Iterator[None]:
    """No progress bars of loading: it takes half a second."""
    from diffusers.utils import logging as of_diffusers
    from transformers.utils import logging as of_transformers

    asked = [module for module in (of_diffusers, of_transformers) if module.is_progress_bar_enabled()]
    for module in asked:
        module.disable_progress_bar()
    try:
        yield
    finally:
        for module in asked:
            module.enable_progress_bar()


def label_of(name: str, prompt: Any) -> int:
    """The class that the classifier should see in the picture of a prompt."""
    return int(prompt) if name == "dit" else procedural.label_of(prompt)


def _part(text: str) -> int:
    """To which split a text belongs, 0 or 1."""
    return zlib.crc32(text.encode()) % len(_SPLITS)


def _label(name: str, asked: Any) -> int:
    if str(asked).isdecimal() and int(asked) < CLASSES[name]:
        return int(asked)
    raise EvaluationError(f"{name} draws classes, not {asked!r}: give numbers from 0 to {CLASSES[name] - 1}.")


@lru_cache(maxsize=8)
def _captions(moving: bool, n: int) -> tuple[str, ...]:
    generator = torch.Generator().manual_seed(4321)
    captions: dict[str, None] = {}
    # One scene at a time: asking for more prompts does not change the first ones.
    while len(captions) < n:
        scene = procedural.moving_scenes(1, generator) if moving else procedural.sample_scenes(1, generator)
        captions[procedural.caption(scene, 0, moving)] = None
    return tuple(captions)
