"""Edits of a reference picture: what they say, and the references of the kontext testbed.

A reference is an emoji on a ground. An edit puts a small second drawing, a sticker, into its corner ("wolf face with star"),
or changes its ground ("wolf face on blue"); the rest stays. `kontext/references.png` holds the references, one for each of
`NAMES`, so that the emoji themselves are needed for training only.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffcache.evals.errors import EvaluationError
from diffcache.evals.testbeds.emoji import GROUNDS, codes

SHEET = Path(__file__).resolve().parent / "kontext" / "references.png"
SIDE, COLUMNS = 64, 8
NAMES = tuple(list(codes())[2::4][:48])
"""The drawings that have a reference here."""
STICKERS = (
    "red heart",
    "star",
    "sun",
    "rose",
    "red apple",
    "fire",
    "soccer ball",
    "balloon",
    "droplet",
    "snowflake",
)


def ground_of(name: str) -> str:
    """The ground of a drawing's reference."""
    return list(GROUNDS)[NAMES.index(name) % len(GROUNDS)]


def with_sticker(name: str, sticker: str) -> str:
    """The prompt that adds a sticker, for example 'wolf face with star'."""
    return f"{name} with {sticker}"


def prompts() -> list[str]:
    """Every edit of every reference, in an order that mixes them."""
    texts = [with_sticker(name, sticker) for name in NAMES for sticker in STICKERS if name != sticker]
    texts += [f"{name} on {ground}" for name in NAMES for ground in GROUNDS if ground != ground_of(name)]
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(4321))
    return [texts[i] for i in order.tolist()]


def edited(prompt: str) -> str:
    """The name of the drawing that a prompt edits.

    Raises:
        EvaluationError: the prompt is no edit of a drawing that has a reference.
    """
    word = " with " if prompt.endswith(tuple(f" with {sticker}" for sticker in STICKERS)) else " on "
    name = prompt.rpartition(word)[0]
    if name not in NAMES:
        raise EvaluationError(f"{prompt!r} edits none of the references: {', '.join(NAMES)}.")
    return name


def references(names: list[str]) -> Tensor:
    """The references of drawings: pictures [n, 3, 64, 64] in [0, 1]."""
    return _sheet()[[NAMES.index(name) for name in names]]


@cache
def _sheet() -> Tensor:
    pixels = torch.from_numpy(np.array(Image.open(SHEET).convert("RGB"))).float() / 255
    rows = pixels.view(-1, SIDE, COLUMNS, SIDE, 3)
    return rows.permute(0, 2, 4, 1, 3).reshape(-1, 3, SIDE, SIDE)
