"""Drift: how far a site's feature is, at each tick, from what it was at an earlier tick.

Letters in shapes: T ticks, S sites. A table, bool [T, S], says what is computed; all else is held.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError

Metric = Literal["l1", "mse", "cosine"]

_EPS = 1e-12
"""Smallest divisor of the cosine."""


def _cosine(others: Tensor, head: Tensor) -> Tensor:
    size = torch.linalg.vector_norm(others, dim=1) * torch.linalg.vector_norm(head)
    similarity: Tensor = (others @ head) / size.clamp_min(_EPS)
    return 1 - similarity


_DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "l1": lambda others, head: (others - head).abs().mean(1),
    "mse": lambda others, head: (others - head).square().mean(1),
    "cosine": _cosine,
}


def drift_of(features: Tensor, metric: Metric = "l1") -> Tensor:
    """The distance of one site's feature at each tick from its feature at each earlier tick.

    Args:
        features: [T, ...] of one uncached run; all dimensions but the first are reduced.
        metric: "l1" (mean absolute difference, as in CacheQuant), "mse" (mean squared difference), or "cosine" (one minus the
            cosine similarity, as in BAC). Only the cosine is comparable between sites.

    Returns:
        float64 [T, T]: entry [a, t] is the error at t if the feature of a is held; 0 where t <= a.

    Raises:
        ConfigError: the metric is unknown.
    """
    if metric not in _DISTANCES:
        raise ConfigError(f"metric: {metric!r} is not one of {', '.join(_DISTANCES)}.")
    flat = features.flatten(1).double()
    drift = flat.new_zeros(len(flat), len(flat))
    for head in range(len(flat) - 1):
        drift[head, head + 1 :] = _DISTANCES[metric](flat[head + 1 :], flat[head])
    return drift


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
        drifts: [S, T, T], for each site what `drift_of` returns.
    """
    sites, ticks = torch.arange(len(drifts)), torch.arange(drifts.shape[-1]).unsqueeze(1)
    return drifts[sites, heads_of(table), ticks]
