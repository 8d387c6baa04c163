"""Blocks: in which parts an answer is written, and how many tokens each model call of a part writes."""

from __future__ import annotations

from itertools import pairwise

import torch

from diffcache.language.sampler.canvas import Canvas
from diffcache.schedulers.errors import ConfigError

BLOCK_LENGTH = 32
"""Of `generate` where nothing else is asked for, as in Fast-dLLM's published runs (arXiv 2505.22618)."""


def blocks_of(canvas: Canvas, block_length: int | None, aligned: bool = False) -> list[range]:
    """The blocks in order. The last may be shorter, and the first too where blocks are aligned.

    Args:
        block_length: None: `BLOCK_LENGTH`; the whole answer where there is a window.
        aligned: blocks are counted from position 0, prompt included, as in models that attend in blocks (LLaDA2).
    """
    size = canvas.length - canvas.prompt
    if block_length is None:
        block_length = BLOCK_LENGTH if canvas.window is None else max(size, 1)
    origin = canvas.prompt // block_length * block_length if aligned else canvas.prompt
    starts = range(origin, canvas.length, block_length)
    return [range(max(at, canvas.prompt), min(at + block_length, canvas.length)) for at in starts]


def parts_of(block: range, size: int | None, first_alone: bool) -> list[range]:
    """A block of a model that attends in blocks, in the parts in which it is written (Fast-dLLM v2, arXiv 2509.26328).

    Args:
        size: tokens of a part, counted from position 0; None for the whole block.
        first_alone: the first token is a part by itself, where the row before the block predicts it.
    """
    size = len(block) + block.start if size is None else size
    starts = {block.start, *range(-(-block.start // size) * size, block.stop, size)}
    if first_alone and len(block) > 1:
        starts.add(block.start + 1)
    ordered = [*sorted(starts), block.stop]
    return [range(start, stop) for start, stop in pairwise(ordered)]


def calls_of(blocks: list[range], steps: int | None) -> list[int]:
    """Model calls of each block, at least one: so many `steps` in all, in proportion to the blocks' sizes; None for one token each.

    Raises:
        ConfigError: fewer steps than blocks.
    """
    if steps is None:
        return [len(block) for block in blocks]
    if steps < len(blocks):
        raise ConfigError(
            f"steps={steps} is less than one call for each of {len(blocks)} blocks: take more steps, or a larger "
            "block_length."
        )
    start, size = blocks[0].start, blocks[-1].stop - blocks[0].start
    ends = [0]
    for later, block in zip(reversed(range(len(blocks))), blocks, strict=True):
        in_proportion = steps * (block.stop - start) // size
        # One call at least for this block, and one is left for each later one.
        ends.append(min(max(in_proportion, ends[-1] + 1), steps - later))
    return [end - before for before, end in pairwise(ends)]


def shares_of(steps: int, eps: float) -> list[float]:
    """Which share of the masks each step of Dream's schedule commits: 1 - s / t of linear timesteps from 1 to eps; 1 at the end."""
    times = torch.linspace(1, eps, steps + 1)
    return [*(1 - times[1:-1] / times[:-2]).tolist(), 1.0]


def quotas_of(size: int, steps: int, eps: float) -> list[int]:
    """How many of `size` masks each call commits after Dream's schedule, rounded as Dream does, in float32.

    Dream also calls its model in steps that commit nothing. They change nothing, and are left out here.
    """
    quotas, left = [], size
    for share in torch.tensor(shares_of(steps, eps)):
        quotas.append(int(torch.tensor(float(left)) * share))
        left -= quotas[-1]
    return [quota for quota in quotas if quota]
