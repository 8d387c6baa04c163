"""Calibrates the threshold of an adaptive method, so that it computes a given share of the work."""

from collections.abc import Sequence
from typing import Any

from diffcache.attach.attach import report_of
from diffcache.config import CacheConfig
from diffcache.profiling.recording.calling import Call, accelerated
from diffcache.profiling.recording.pictures import rewound
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.bisection import smallest

LARGEST = 64.0
"""The largest threshold that is tried."""

HALVINGS = 10
"""How often the interval that contains the threshold is halved."""


def calibrate_threshold(pipe: Any, calls: Sequence[Call], config: CacheConfig, compute: float) -> CacheConfig:
    """An adaptive method with the smallest threshold at which it computes at most a given share of the work.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of each calibration call.
        config: the method.
        compute: the share, a mean over the calls.

    Raises:
        ConfigError: the method has no threshold, or computes more at the largest one.
    """
    if "threshold" not in config.options():
        raise ConfigError(f"{config.name} has no threshold to calibrate.")

    def suffices(threshold: float) -> bool:
        return _compute(pipe, calls, config.replace(threshold=threshold)) <= compute

    low, high = 0.0, 1.0
    while not suffices(high):
        if high >= LARGEST:
            raise ConfigError(f"{config.name} computes more than {compute:.0%} at any threshold.")
        low, high = high, 2 * high
    return config.replace(threshold=smallest(suffices, low, high, HALVINGS))


def _compute(pipe: Any, calls: Sequence[Call], config: CacheConfig) -> float:
    """The share of the work that a method computes, mean over the calls."""
    shares: list[float] = []
    with accelerated(pipe, config):
        for call in calls:
            pipe(**rewound(call))
            shares.append(report_of(pipe).compute_fraction)
    return sum(shares) / len(shares)
