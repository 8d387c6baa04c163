"""From a picture's pixels to places in the latents, and the grid that a picture's or a clip's tokens make."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from diffcache.host.call import Call
from diffcache.schedulers.errors import ConfigError

Grid = tuple[int, int, int]
"""Frames, rows and columns of tokens."""

AXES = (2, 3, 4)
"""So many coordinates have positions of tokens."""


def grid_told(call: Call, own: Tensor) -> Grid | None:
    """The grid of the picture's tokens, as far as a denoiser's arguments tell it; None where they do not.

    They tell it by the positions of all tokens, [tokens, axes] or [batch, tokens, axes] (Flux), or by frames, height and width, one after another
    (LTX, Qwen-Image). Frames that are given, and do not move, are no part of it.

    Args:
        call: of the denoiser.
        own: which of its tokens are the picture's, bool [tokens].
    """
    if not own.any():
        return None
    for path, tensor in call.tensors.items():
        if not call.is_latent(path) and tensor.ndim in (2, 3) and tensor.shape[-2:-1] == own.shape:
            positions = tensor if tensor.ndim == 2 else tensor[0]
            if positions.shape[1] in AXES and (found := _grid_of_positions(positions[own])) is not None:
                return found
    sizes = [leaf for leaf in call.leaves.values() if type(leaf) is int]
    for frames, rows, columns in zip(sizes, sizes[1:], sizes[2:], strict=False):
        count = frames * rows * columns
        if min(frames, rows, columns) > 0 and count == int(own.sum()):
            return frames, rows, columns
        if min(frames, rows, columns) > 0 and count == len(own):  # some frames are given
            moving = own.view(frames, -1)
            if bool((moving == moving[:, :1]).all()):
                return int(moving[:, 0].sum()), rows, columns
    return None


def _grid_of_positions(positions: Tensor) -> Grid | None:
    """The grid of tokens [tokens, axes] that come row by row; None where they do not, or make no more than one row or column."""
    axes = [axis for axis in positions.unbind(1) if bool((axis != axis[0]).any())]
    sizes = [len(torch.unique(axis)) for axis in axes]
    if not 2 <= len(axes) <= 3 or math.prod(sizes) != len(positions):
        return None
    places = torch.arange(len(positions), device=positions.device).view(sizes)
    for i, axis in enumerate(axes):
        along = axis[places].movedim(i, 0).flatten(1)
        if not bool((along == along[:, :1]).all()):
            return None
    frames, rows, columns = [1, *sizes][-3:]
    return frames, rows, columns


def grid_of(count: int, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of so many tokens, for a picture of this size; a sound's height is 1.

    Raises:
        ConfigError: no grid of this shape has so many.
    """
    rows = math.sqrt(count * height / width)
    found = 1 if height == 1 < width else round(rows)
    if found < 1 or count % found or abs(count // found * height - found * width) >= max(height, width):
        raise ConfigError(
            f"rows: {count} tokens make no grid for a mask of {height} x {width}: give the mask at the picture's own resolution."
        )
    return found, count // found


def resized(mask: Tensor, height: int, width: int) -> Tensor:
    """A mask [batch, H, W] at another size: a place is chosen where any of its pixels is."""
    return functional.adaptive_max_pool2d(mask[:, None].float(), (height, width))[:, 0] > 0


def places_in(latent: Tensor, mask: Tensor, moving: Tensor, grid: Grid | None = None) -> Tensor:
    """Which places of a latent a picture's mask means, stretched over the picture: bool [batch or 1, places...].

    Args:
        latent: [batch, tokens, channels], or [batch, channels, (frames,) height, width].
        mask: of the picture, or of each frame, bool [batch or 1, H, W].
        moving: the places that change between ticks, bool [batch, places...]; of packed tokens these are the picture's.
        grid: of packed tokens; None: that of one picture of the mask's shape.

    Raises:
        ConfigError: the latents are no picture, or have no grid of the mask's shape.
    """
    if latent.ndim == 3:
        own = moving[:1].expand(len(moving), -1)
        if not torch.equal(own, moving):
            raise ConfigError("rows: the samples of this batch have different tokens: call them one by one.")
        frames, height, width = grid or (1, *grid_of(int(moving[0].sum()), *mask.shape[-2:]))
        chosen = torch.zeros(len(mask), latent.shape[1], dtype=torch.bool, device=latent.device)
        chosen[:, moving[0]] = resized(mask, height, width).flatten(1).repeat(1, frames)
        return chosen
    if latent.ndim not in (4, 5):
        raise ConfigError(f"rows: latents of {latent.ndim} dimensions are no picture: leave rows= out.")
    small = resized(mask, *latent.shape[-2:])
    return small if latent.ndim == 4 else small[:, None].expand(-1, latent.shape[2], -1, -1)


def over_channels(places: Tensor, latent: Tensor) -> Tensor:
    """A mask of places as one of the latent's entries: bool of the latent's shape. Its samples repeat over guidance passes."""
    if len(latent) % len(places):
        raise ConfigError(
            f"rows: {len(places)} masks do not fit {len(latent)} samples: give one, or one for each picture."
        )
    whole = places.repeat(len(latent) // len(places), *[1] * (places.ndim - 1))
    return (whole[..., None] if latent.ndim == 3 else whole[:, None]).expand_as(latent)


def changed_places(before: Tensor, now: Tensor) -> Tensor:
    """The places of a latent at which it differs from an earlier one: bool [batch, places...]."""
    return (before != now).any(-1 if now.ndim == 3 else 1)
