"""WithRows: a method whose computed calls compute some of the picture's tokens (`accelerate(..., rows=)`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffcache.config import CacheConfig, RunFacts
from diffcache.recipes.derived_config import DerivedConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.tokens.grids import resized
from diffcache.tokens.row_rule import FullCalls, Masked, Moving, Region, RowRule, Source

FEWEST, FEW = 4, 8
"""Runs of more ticks than the first and no more than the second compute every second tick in full, others every third. The last tick is
always computed in full: chosen on the testbed flux, where `#%%#` is 3 dB nearer than `#%#%` for the same work."""

FEWEST_BETWEEN = 2
"""So many ticks after a full one some tokens may be computed, and in longer runs an eighth of the run. Chosen on flux and on kontext's
calibration prompts: in eight steps a method that computes half of the ticks saves a fifth of its work by that. Edits of kontext come as near to the
full run; flux in six steps lost 9 dB."""

NO_MASK = 'rows="mask" takes the mask_image of an inpainting pipeline, and this call has none: pass rows=mask itself.'

CROPPED = 'rows="mask" does not follow padding_mask_crop, which paints a part of the picture: leave one of them out.'


@dataclass(frozen=True, kw_only=True)
class WithRows(DerivedConfig):
    """A method whose computed calls compute some tokens.

    Attributes:
        source: which; None: those under the mask that the pipeline is called with.
    """

    source: Source | None

    def options(self) -> dict[str, Any]:
        named = "mask" if self.source is None else type(self.source).__name__.lower()
        return {**self.base.options(), "rows": named}

    def token_rows(self, run: RunFacts) -> RowRule | None:
        if self.source is None:
            return RowRule(Moving(), FullCalls())
        ticks = FEW if run.num_ticks is None else run.num_ticks
        every = 2 if FEWEST < ticks <= FEW else 3
        return RowRule(self.source, FullCalls(every=every, last=1, reach=max(ticks // FEW, FEWEST_BETWEEN)))

    def for_call(self, call: Mapping[str, Any]) -> CacheConfig:
        source = self.source
        if source is None:
            if call.get("mask_image") is None:
                raise ConfigError(NO_MASK)
            if call.get("padding_mask_crop") is not None:
                raise ConfigError(CROPPED)
            source = Masked(mask_of(call["mask_image"]))
        if isinstance(source, Region) and call.get("height") and call.get("width"):
            source = replace(source, aspect=(int(call["height"]), int(call["width"])))
        return replace(self, base=self.base.for_call(call), source=source)


def source_of(rows: Any) -> Source | None:
    """What `rows=` means; None for the mask of an inpainting pipeline.

    Raises:
        ConfigError: it is nothing of what is known.
    """
    if isinstance(rows, str):
        known: dict[str, Source | None] = {"mask": None, "context": Moving(), "region": Region()}
        if rows in known:
            return known[rows]
        raise ConfigError(f"rows={rows!r}: give a mask, or one of {', '.join(map(repr, known))}.")
    if isinstance(rows, (Tensor, np.ndarray)):
        mask = torch.as_tensor(rows)
        if mask.dtype == torch.bool and mask.ndim in (2, 3) and bool(mask.any()):
            return Masked(mask)
    if hasattr(rows, "convert"):  # a PIL picture
        return source_of(mask_of(rows))
    raise ConfigError(
        "rows= must be a bool mask [H, W] or [batch, H, W] at the picture's resolution with something in it, a PIL picture of one "
        "(white is computed), or 'mask', 'context' or 'region'."
    )


def mask_of(image: Any) -> Tensor:
    """A pipeline's `mask_image` as a mask: white is painted anew. Bool [batch, H, W], of the first one's size."""
    if isinstance(image, (list, tuple)):
        masks = [mask_of(one) for one in image]
        return torch.cat([resized(mask, *masks[0].shape[1:]) for mask in masks])
    if hasattr(image, "convert"):  # as Diffusers reads it, whatever its mode
        image = np.array(image.convert("L")) / 255
    values = torch.as_tensor(np.array(image) if not isinstance(image, Tensor) else image).float()
    values = values / (255 if float(values.max()) > 1 else 1)
    if values.ndim == 3 and values.shape[-1] in (1, 3, 4):  # a picture with channels last
        values = values[..., :3].mean(-1)
    values = values.mean(1) if values.ndim == 4 else values
    return (values if values.ndim == 3 else values[None]) >= 0.5
