"""Calibrates the threshold of an adaptive method, so that it computes a given share of the work."""

from collections.abc import Sequence
from typing import Any

from diffcache.attach.attach import report_of
from diffcache.config import CacheConfig
from diffcache.profiling.recording.calling import Call, accelerated
from diffcache.profiling.recording.each_call import of_each_call
from diffcache.profiling.recording.journal import Entry
from diffcache.profiling.recording.loops import target_of
from diffcache.profiling.recording.pictures import rewound
from diffcache.profiling.recording.shares import TooLittle, check_share
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
        ConfigError: the share is not above 0 and at most 1, the method has no threshold, or computes more at the largest one.
    """
    check_share(compute)
    if "threshold" not in config.options():
        raise ConfigError(f"{config.name} has no threshold to calibrate.")

    def suffices(threshold: float) -> bool:
        return _compute(pipe, calls, config.replace(threshold=threshold)) <= compute

    low, high = 0.0, 1.0
    while not suffices(high):
        if high >= LARGEST:
            raise TooLittle(f"{config.name} computes more than {compute:.0%} at any threshold.")
        low, high = high, 2 * high
    return config.replace(threshold=smallest(suffices, low, high, HALVINGS))


def _compute(pipe: Any, calls: Sequence[Call], config: CacheConfig) -> float:
    """The share of the work that a method computes, mean over the calls."""

    def share(call: Call) -> Entry:
        pipe(**rewound(call))
        return Entry({}, {"compute": report_of(target_of(pipe)).compute_fraction})

    with accelerated(pipe, config):
        entries = of_each_call("share", calls, share, config=config)
    return sum(float(entry.facts["compute"]) for entry in entries) / len(entries)
