"""Tallies: long texts whose check tokens count what was written before them, in whatever order it was written.

A text is a list of pages. A page has eight lines of two marks, and ends with its total: the number of lines whose marks are
both on. Any marks may come, but the total must be right. So a model must first see for each line what its two marks make
together, and then count lines. A cache that keeps one mark as it was computed while the other was still a mask miscounts:
unlike in word chains, what is stale does harm until it is computed again.
"""

from __future__ import annotations

import torch
from torch import Tensor

LINES = 8
"""Lines of a page."""

PAGE = 2 * LINES + 1
HEAD = 1
PAD, MASK, EOS, BOS, LEFT_OFF, LEFT_ON, RIGHT_OFF, RIGHT_ON, NONE = range(9)
SYMBOLS = [
    *("<pad>", "<mask>", "<eos>", "<bos>"),
    *("-", "+", ".", "o"),
    *(str(total) for total in range(LINES + 1)),
]
"""The vocabulary; a token's id is its index. A line is `-` or `+`, and `.` or `o`; `+o` counts."""


def length_of(pages: int) -> int:
    """The number of tokens in a text of so many pages."""
    return HEAD + PAGE * pages


def texts(n: int, pages: int, generator: torch.Generator) -> Tensor:
    """n random texts, token ids [n, 1 + 17 * pages]."""
    on = torch.randint(2, (n, pages, LINES, 2), generator=generator)
    marks = torch.where(on.bool(), torch.tensor([LEFT_ON, RIGHT_ON]), torch.tensor([LEFT_OFF, RIGHT_OFF]))
    total = on.all(dim=3).sum(dim=2, keepdim=True) + NONE
    body = torch.cat([marks.flatten(2), total], dim=2).flatten(1)
    return torch.cat([body.new_full((n, HEAD), BOS), body], dim=1)


def prompts(n: int, pages: int, seed: int) -> Tensor:
    """n random beginnings of so many pages, token ids [n, 1 + 17 * pages]."""
    return texts(n, pages, torch.Generator().manual_seed(seed))


def right_pages(ids: Tensor, prompt_length: int) -> Tensor:
    """Bool [n, pages written]: which pages after the prompt have marks in all lines, and the right total.

    Args:
        ids: texts with their prompts, [n, length]; an unfinished last page is ignored.
        prompt_length: tokens of the prompt: the head and whole pages.
    """
    written = ids[:, prompt_length:]
    pages = written[:, : written.shape[1] // PAGE * PAGE].view(len(ids), -1, PAGE)
    left, right, total = pages[..., 0:-1:2], pages[..., 1:-1:2], pages[..., -1]
    are_marks = ((left == LEFT_OFF) | (left == LEFT_ON)) & ((right == RIGHT_OFF) | (right == RIGHT_ON))
    counted = ((left == LEFT_ON) & (right == RIGHT_ON)).sum(dim=2) + NONE
    found: Tensor = are_marks.all(dim=2) & (total == counted)
    return found
