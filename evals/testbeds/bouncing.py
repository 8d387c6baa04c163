"""Clips of any length: one shape that moves along a line and turns back at its ends, so that it never leaves the picture."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from diffcache.evals.testbeds import procedural
from diffcache.evals.testbeds.procedural import Batch, Scenes

SPEED = 0.0875
"""How far the shape moves from frame to frame; the picture is 2 wide. The same as in the clips of the wan testbed."""
REACH = 0.5
"""How far from the picture's middle it turns back."""


def bouncing_clips(n: int, seed: int, side: int, frames: int) -> Batch:
    """Draws n labelled clips. The shape starts anywhere on its line, in the direction that the caption names.

    Args:
        n: number of clips.
        seed: the same seed gives the same clips, and a longer clip begins with the shorter one.
        side: of the picture in pixels.
        frames: number of frames.
    """
    generator = torch.Generator().manual_seed(seed)
    scenes = procedural.moving_scenes(n, generator)
    start = (torch.rand(n, generator=generator) * 2 - 1) * REACH
    captions = [procedural.caption(scenes, i, moving=True) for i in range(n)]
    pixels = procedural.render(_frames(scenes, start, frames), side)
    return Batch(pixels.view(n, frames, 3, side, side).transpose(1, 2).contiguous(), scenes.labels, captions)


def _frames(scenes: Scenes, start: Tensor, frames: int) -> Scenes:
    """Each scene at each frame: [n * frames]. Positions along the line are a triangle wave of the time."""
    n = len(start)
    time = torch.arange(frames) * SPEED
    along = torch.remainder(start[:, None] + REACH + time, 4 * REACH)  # [n, frames], as if it began forwards
    along = torch.where(along > 2 * REACH, 4 * REACH - along, along) - REACH
    direction = procedural.DIRECTIONS[scenes.motion]
    across = scenes.centre[:, 0] * 0.6 * (1 - direction.abs())
    moved = scenes[torch.arange(n).repeat_interleave(frames)]
    centre = moved.centre.clone()
    centre[:, 0] = (across[:, None] + along[..., None] * direction[:, None]).flatten(0, 1)
    return replace(moved, centre=centre)
