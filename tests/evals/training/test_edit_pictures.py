"""Training pairs of edits: a sticker covers its corner only."""

from __future__ import annotations

import torch

from diffcache.evals.training.edit_pictures import pasted


def test_a_sticker_changes_its_corner_and_nothing_else() -> None:
    pictures = torch.rand(2, 3, 64, 64)
    opaque = torch.cat([torch.full((2, 3, 28, 28), 0.25), torch.ones(2, 1, 28, 28)], 1)
    result = pasted(pictures, opaque)
    assert bool((result[:, :, 34:62, 34:62] == 0.25).all())
    result[:, :, 34:62, 34:62] = pictures[:, :, 34:62, 34:62]
    assert torch.equal(result, pictures)


def test_a_transparent_sticker_changes_nothing() -> None:
    pictures = torch.rand(2, 3, 64, 64)
    assert torch.equal(pasted(pictures, torch.zeros(2, 4, 28, 28)), pictures)
