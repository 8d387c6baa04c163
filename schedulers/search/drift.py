"""Drift: how far a site's feature is, at each tick, from what it was at an earlier tick; what a table makes of it.

Letters in shapes: T ticks, S sites. A table, bool [T, S], says what is computed; all else is held.
"""

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError


def heads_of(table: Tensor) -> Tensor:
    """The tick whose feature each tick uses, int64 [..., T, S]: the last computed tick at or before it.

    Args:
        table: bool [..., T, S].

    Raises:
        ConfigError: a site is not computed at the first tick.
    """
    if not bool(table[..., 0, :].all()):
        raise ConfigError("table: every site must be computed at the first tick.")
    ticks = torch.arange(table.shape[-2], device=table.device).unsqueeze(1)
    return torch.where(table, ticks, -1).cummax(-2).values


def staleness(table: Tensor, drifts: Tensor) -> Tensor:
    """The error of holding at each tick and site of a table, float64 [..., T, S]; 0 where it computes.

    Args:
        table: bool [..., T, S].
        drifts: [S, T, T]; entry [s, a, t] is the error at t if the feature of a is held.
    """
    sites, ticks = torch.arange(len(drifts)), torch.arange(drifts.shape[-1]).unsqueeze(1)
    return drifts[sites, heads_of(table), ticks]
