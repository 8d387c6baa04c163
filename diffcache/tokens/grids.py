"""From a picture's pixels to places in the latents."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from diffcache.schedulers.errors import ConfigError


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


def places_in(latent: Tensor, mask: Tensor, moving: Tensor) -> Tensor:
    """Which places of a latent a picture's mask means: bool [batch or 1, places...].

    Args:
        latent: [batch, tokens, channels], or [batch, channels, (frames,) height, width].
        mask: of the picture, bool [batch or 1, H, W].
        moving: the places that change between ticks, bool [batch, places...]; of packed tokens these are the picture's.

    Raises:
        ConfigError: the latents are no picture, or have no grid of the mask's shape.
    """
    if latent.ndim == 3:
        own = moving[:1].expand(len(moving), -1)
        if not torch.equal(own, moving):
            raise ConfigError("rows: the samples of this batch have different tokens: call them one by one.")
        height, width = grid_of(int(moving[0].sum()), *mask.shape[-2:])
        chosen = torch.zeros(len(mask), latent.shape[1], dtype=torch.bool, device=latent.device)
        chosen[:, moving[0]] = resized(mask, height, width).flatten(1)
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
