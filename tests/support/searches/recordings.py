"""Recordings, compared and made up."""

import torch
from torch import Tensor

from diffcache.profiling.recording.recording import STATISTICS, Curve, Recording

KEPT = [name for name in STATISTICS if name != "seconds"]


def same(a: Recording, b: Recording) -> bool:
    """Whether two recordings have the same sites and the same statistics, wall times aside."""
    return a.sites == b.sites and all(
        torch.equal(getattr(a.curves[key], name).nan_to_num(), getattr(b.curves[key], name).nan_to_num())
        for key in a.curves | b.curves
        for name in KEPT
    )


def curve_of(drift: Tensor) -> Curve:
    """A curve with these drifts, [tick, earlier tick]."""
    ones = torch.ones(len(drift), dtype=torch.float64)
    return Curve(drift, ones, ones, ones, runs=1)


def drift_by_distance(ticks: int) -> Tensor:
    """Drifts that are the distance in ticks, [tick, earlier tick]; NaN where the tick is not later."""
    at = torch.arange(ticks, dtype=torch.float64)
    return (at.unsqueeze(1) - at).masked_fill(at.unsqueeze(1) <= at, torch.nan)
