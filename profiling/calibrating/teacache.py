"""Calibrates TeaCache (arXiv 2411.19108): the polynomial from a change of its signal to a change of the output."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from diffcache.engine.observers import Observer
from diffcache.profiling.recording.calling import Call, accelerated, watched_run
from diffcache.profiling.recording.each_call import of_each_call
from diffcache.profiling.recording.journal import Entry
from diffcache.recipes.teacache import TeaCacheConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.signals import EPS
from diffcache.schedulers.steps import Step

DEGREE = 4
"""Degree of the polynomial, as published."""


def calibrate_teacache(pipe: Any, calls: Sequence[Call], **options: Any) -> TeaCacheConfig:
    """TeaCache with a polynomial that is fitted to this pipeline: from the change of the signal to that of the stack's output.

    It is a least-squares fit over all ticks and calls (np.polyfit), as published.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of each calibration call.
        **options: other options of `TeaCacheConfig`.

    Raises:
        ConfigError: the calls have too few ticks for the fit.
    """

    def changes(call: Call) -> Entry:
        seen = _Changes()
        watched_run(pipe, call, seen)
        return Entry({}, {"pairs": list(zip(seen.of_signal, seen.of_output, strict=True))})

    with accelerated(pipe, TeaCacheConfig(threshold=0, coefficients=(1.0, 0.0))):
        entries = of_each_call("teacache", calls, changes)
    pairs = [(x, y) for entry in entries for x, y in entry.facts["pairs"] if y > 0]
    if len(pairs) <= DEGREE:
        raise ConfigError(f"TeaCache: {len(pairs)} changes are too few: calibrate on more steps or calls.")
    x, y = np.array(pairs).T
    return TeaCacheConfig(coefficients=tuple(float(c) for c in np.polyfit(x, y, DEGREE)), **options)


@dataclass
class _Changes(Observer):
    """The relative changes from tick to tick, in the leading branch.

    Attributes:
        of_signal: what TeaCache measures.
        of_output: of the stack's output, in the stream that continues its first latent.
    """

    of_signal: list[float] = field(default_factory=list)
    of_output: list[float] = field(default_factory=list)
    _branch: str | None = None
    _output: Tensor | None = None

    def measured(self, denoiser: str, step: Step, signal: Sequence[float]) -> None:
        self._branch = step.branch
        self.of_signal.append(signal[0])

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor], stream: int
    ) -> None:
        output = outputs[stream]
        if (step.tick == 0 and self._output is None) or step.branch in (self._branch, None):
            if len(self.of_output) < len(self.of_signal) and self._output is not None:
                change = (output - self._output).abs().mean() / (self._output.abs().mean() + EPS)
                self.of_output.append(float(change))
            self._output = output.clone()
