"""Calibrations of other methods: MagCache's ratios, TeaCache's polynomial, a threshold for a share of compute."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffcache import report
from diffcache.config import CacheConfig
from diffcache.engine.observers import Observer
from diffcache.profiling.recording.calling import Call, accelerated, watched_run
from diffcache.profiling.recording.pictures import rewound
from diffcache.profiling.recording.record import record
from diffcache.recipes.magcache import MagCacheConfig
from diffcache.recipes.teacache import TeaCacheConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.signals import EPS
from diffcache.schedulers.steps import Step

DEGREE = 4
BISECTIONS = 10
MOST = 64.0
"""The largest threshold that is tried."""


def magcache(pipe: Any, calls: Sequence[Call], **options: Any) -> MagCacheConfig:
    """MagCache with this pipeline's own ratios: of the leading branch's stack residual, means over the calls."""
    recording = record(pipe, calls, sites="stack", lag=1)
    ratios = torch.stack([curve.ratio for curve in recording.leads]).prod(0)  # 1 at ticks of another denoiser
    return MagCacheConfig(ratios=tuple(round(float(ratio), 5) for ratio in ratios), **options)


def teacache(pipe: Any, calls: Sequence[Call], **options: Any) -> TeaCacheConfig:
    """TeaCache with a polynomial of degree 4 fitted to this pipeline: from the change of what is measured to that of the
    stack's output (np.polyfit over all ticks and calls, as published).

    Raises:
        ConfigError: the calls have too few ticks for it.
    """
    pairs = _Pairs()
    with accelerated(pipe, TeaCacheConfig(threshold=0, coefficients=(1.0, 0.0))):
        for call in calls:
            watched_run(pipe, call, pairs)
    changes = [(x, y) for x, y in zip(pairs.measured_changes, pairs.output_changes, strict=True) if y > 0]
    if len(changes) <= DEGREE:
        raise ConfigError(
            f"TeaCache: {len(changes)} changes say too little: calibrate on more steps or calls."
        )
    x, y = np.array(changes).T
    return TeaCacheConfig(coefficients=tuple(float(c) for c in np.polyfit(x, y, DEGREE)), **options)


def threshold_for(pipe: Any, calls: Sequence[Call], config: CacheConfig, compute: float) -> CacheConfig:
    """An adaptive method with the smallest threshold that computes at most this share on the calls, by bisection.

    Raises:
        ConfigError: the method has no threshold, or none at which so little is computed.
    """
    if "threshold" not in config.options():
        raise ConfigError(f"{config.name} has no threshold to calibrate.")
    low, high = 0.0, 1.0
    while _compute(pipe, calls, config.replace(threshold=high)) > compute and high < MOST:
        low, high = high, 2 * high
    if high == MOST and _compute(pipe, calls, config.replace(threshold=high)) > compute:
        raise ConfigError(f"{config.name} computes more than {compute:.0%} at any threshold.")
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _compute(pipe, calls, config.replace(threshold=middle)) > compute:
            low = middle
        else:
            high = middle
    return config.replace(threshold=high)


def _compute(pipe: Any, calls: Sequence[Call], config: CacheConfig) -> float:
    """Mean share of work that a method computes."""
    shares: list[float] = []
    with accelerated(pipe, config):
        for call in calls:
            pipe(**rewound(call))
            shares.append(report(pipe).compute_fraction)
    return sum(shares) / len(shares)


@dataclass
class _Pairs(Observer):
    """The change of the signal and that of the stack's output, tick by tick, in the leading branch."""

    measured_changes: list[float] = field(default_factory=list)
    output_changes: list[float] = field(default_factory=list)
    _branch: str | None = None
    _output: Tensor | None = None

    def measured(self, denoiser: str, step: Step, signal: Sequence[float]) -> None:
        self._branch = step.branch
        self.measured_changes.append(signal[0])

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        if (step.tick == 0 and self._output is None) or step.branch in (self._branch, None):
            if len(self.output_changes) < len(self.measured_changes) and self._output is not None:
                change = (outputs[0] - self._output).abs().mean() / (self._output.abs().mean() + EPS)
                self.output_changes.append(float(change))
            self._output = outputs[0].clone()
