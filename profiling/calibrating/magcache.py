"""Calibrates MagCache (arXiv 2506.09045): the magnitude ratios of a pipeline's own residuals."""

from collections.abc import Sequence
from typing import Any

import torch

from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.record import recorded
from diffcache.recipes.magcache import MagCacheConfig


def calibrate_magcache(pipe: Any, calls: Sequence[Call], **options: Any) -> MagCacheConfig:
    """MagCache with the ratios of this pipeline: of the stack's residual in the leading branch, means over the calls. Where text flows
    beside the picture, they are those of the picture, as published.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of each calibration call, all with the same number of steps.
        **options: other options of `MagCacheConfig`.
    """
    recording = recorded(pipe, calls, sites="stack", lag=1)
    ratios = torch.stack([curve.ratio for curve in recording.leads]).prod(0)  # 1 at ticks of another denoiser
    return MagCacheConfig(ratios=tuple(round(float(ratio), 5) for ratio in ratios), **options)
