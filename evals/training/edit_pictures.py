"""Training pairs of the kontext testbed: a reference, the same picture edited, and the edit as a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from diffcache.evals.testbeds import edits
from diffcache.evals.testbeds.emoji import GROUNDS, caption, codes
from diffcache.evals.training.emoji import drawings, moved, on_grounds
from diffcache.evals.training.grids import save_sheet

_VIEWS = 30  # pairs of each drawing
_SEED = 61_000
_STICKER_SIDE, _MARGIN = 28, 2


@dataclass(frozen=True)
class Pairs:
    """Pictures [n, 3, 64, 64] in uint8, before and after an edit, and n prompts."""

    references: Tensor
    results: Tensor
    prompts: list[str]


def pairs(work: Path) -> Pairs:
    """The training pairs: every drawing 30 times; half of the edits add a sticker, half change the ground."""
    generator, names = torch.Generator().manual_seed(_SEED), list(codes())
    cutouts, stickers = drawings(work, codes().values()), _stickers(work)
    colours, grounds, n = torch.tensor(list(GROUNDS.values())), list(GROUNDS), len(names)
    references, results, prompts = [], [], []
    for _ in range(_VIEWS):
        view = moved(cutouts, generator)
        before = torch.randint(len(grounds), (n,), generator=generator)
        other = (before + torch.randint(1, len(grounds), (n,), generator=generator)) % len(grounds)
        chosen = torch.randint(len(stickers), (n,), generator=generator)
        adds = torch.rand(n, generator=generator) < 0.5
        reference = on_grounds(view, colours[before])
        changed = on_grounds(view, colours[other])
        result = torch.where(adds[:, None, None, None], pasted(reference, stickers[chosen]), changed)
        references.append(_eight_bit(reference))
        results.append(_eight_bit(result))
        for name, ground, sticker, add in zip(
            names, other.tolist(), chosen.tolist(), adds.tolist(), strict=True
        ):
            adding = edits.with_sticker(name, edits.STICKERS[sticker])
            prompts.append(adding if add else caption(name, grounds[ground]))
    return Pairs(torch.cat(references), torch.cat(results), prompts)


def pasted(pictures: Tensor, stickers: Tensor) -> Tensor:
    """Pictures [n, 3, 64, 64] with stickers [n, 4, 28, 28], premultiplied by their opacity, in the lower right corner."""
    corner = slice(-_STICKER_SIDE - _MARGIN, -_MARGIN)
    result = pictures.clone()
    below = pictures[:, :, corner, corner]
    result[:, :, corner, corner] = stickers[:, :3] + (1 - stickers[:, 3:]) * below
    return result


def write_references(work: Path, path: Path) -> None:
    """Writes the references of `edits.NAMES` as one PNG."""
    cutouts = drawings(work, [codes()[name] for name in edits.NAMES])
    colours = torch.tensor([GROUNDS[edits.ground_of(name)] for name in edits.NAMES])
    view = moved(cutouts, torch.Generator().manual_seed(_SEED - 1))
    save_sheet(on_grounds(view, colours), path, edits.COLUMNS)


def _stickers(work: Path) -> Tensor:
    cutouts = drawings(work, [codes()[name] for name in edits.STICKERS])
    premultiplied = torch.cat([cutouts[:, :3] * cutouts[:, 3:], cutouts[:, 3:]], 1)
    size = (_STICKER_SIDE, _STICKER_SIDE)
    return functional.interpolate(premultiplied, size, mode="bilinear", antialias=True, align_corners=False)


def _eight_bit(pictures: Tensor) -> Tensor:
    return pictures.mul(255).round().to(torch.uint8)
