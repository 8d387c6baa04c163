"""Emoji with their names as prompts: which drawings, on which grounds, and what the captions say.

The names are Unicode's, in lower case; `emoji.txt` lists them with the code points that name their pictures. Those after a
dash are no prompts, only the autoencoder is trained on them: so small models learn 200 drawings in half an hour, but not 700.
The pictures themselves are needed for training only (`diffcache.evals.training.emoji`).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

_FILE = Path(__file__).resolve().parent / "emoji.txt"
GROUNDS: dict[str, tuple[float, float, float]] = {
    "white": (1.0, 1.0, 1.0),
    "grey": (0.74, 0.75, 0.76),
    "blue": (0.62, 0.79, 0.95),
    "green": (0.68, 0.87, 0.66),
    "pink": (0.97, 0.74, 0.80),
    "dark": (0.14, 0.15, 0.24),
}
"""The plain grounds, red, green and blue in [0, 1]."""


@cache
def every_code() -> tuple[str, ...]:
    """Code points of all drawings that training uses."""
    return tuple(line.removeprefix("- ").split()[0] for line in _FILE.read_text().splitlines())


@cache
def codes() -> dict[str, str]:
    """Code points of the drawings that prompts name, by name: for example '1f34e' of 'red apple'."""
    lines = (line for line in _FILE.read_text().splitlines() if not line.startswith("- "))
    return {name: code for code, name in (line.split(maxsplit=1) for line in lines)}


def caption(name: str, ground: str) -> str:
    """What the prompt of a picture is, for example 'red apple on blue'."""
    return f"{name} on {ground}"


def captions() -> list[str]:
    """Every caption there is, in an order that mixes names and grounds."""
    texts = [caption(name, ground) for name in codes() for ground in GROUNDS]
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(4321))
    return [texts[i] for i in order.tolist()]


def words() -> tuple[str, ...]:
    """Every word that can be in a caption, sorted."""
    return tuple(sorted({word for text in captions() for word in text.split()}))
