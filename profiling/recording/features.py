"""Keeps the features of one full run, for calibrations that compare predictions of many kinds with them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.engine.observers import Observer
from diffcache.profiling.recording.calling import Call, accelerated, watched_run
from diffcache.reports.records import RunRecord
from diffcache.schedulers.errors import TargetError
from diffcache.schedulers.steps import Step

ROWS = 64
"""So many combinations of features are made at once."""


@dataclass
class Leading(Observer):
    """Keeps what is stored of the first site in the leading guidance pass, in host memory.

    Attributes:
        found: fp32, one for each tick, all streams in one row.
    """

    found: list[Tensor] = field(default_factory=list)
    _key: tuple[str, str, str] | None = None

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor], stream: int
    ) -> None:
        key = denoiser, step.site, step.branch
        self._key = self._key or key
        if key == self._key:
            self.found.append(torch.cat([feature.float().flatten().cpu() for feature in features]))


def features_of(pipe: Any, call: Call, config: CacheConfig) -> tuple[Tensor, RunRecord]:
    """The features of one call's run, fp32 [ticks, elements] in host memory, and its record.

    Args:
        pipe: a pipeline or a `Loop`; it is plain afterwards.
        call: its keyword arguments.
        config: what is to be kept; it computes everything.

    Raises:
        TargetError: the call has no denoising loop or several, or the pipeline has several denoisers.
    """
    seen = Leading()
    with accelerated(pipe, config):
        record = watched_run(pipe, call, seen)
    if len(record.models) != 1:
        raise TargetError("this calibration is for pipelines with one denoiser, and this one runs several.")
    return torch.stack(seen.found), record


def mean_sizes(combinations: Tensor, features: Tensor) -> Tensor:
    """Mean absolute value of each combination of features, fp32 [combinations].

    Args:
        combinations: [combinations, ticks].
        features: [ticks, elements].
    """
    parts = torch.split(combinations.float(), ROWS)
    return torch.cat([(part @ features).abs().mean(dim=1) for part in parts])
