"""Full runs: the pictures of some calls without a cache, and how close a method comes to them."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from diffcache.attach.attach import detach, report_of
from diffcache.config import CacheConfig
from diffcache.profiling.recording.calling import Call, accelerated
from diffcache.profiling.recording.loops import target_of
from diffcache.profiling.recording.pictures import pictures_of, psnr, rewound
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import Schedule


class FullRuns:
    """The full runs of some calls, with which methods are compared. They are rendered at once.

    Args:
        pipe: a pipeline or a `Loop`; it is plain afterwards.
        calls: keyword arguments of each call. Their generators are set back to their seeds for every render.

    Attributes:
        pictures: [N, ..., H, W] in 0..1, of all calls.

    Raises:
        ConfigError: a call that is repeated gives other pictures.
    """

    def __init__(self, pipe: Any, calls: Sequence[Call]) -> None:
        detach(target_of(pipe))
        self.pipe = pipe
        self.calls = calls
        state = torch.get_rng_state()
        self.pictures = self._render("full runs")
        drew_numbers = not torch.equal(state, torch.get_rng_state())
        if drew_numbers and not self._repeats():
            raise ConfigError(
                "the same call gives other pictures each time: give it a generator, or the pipeline a noise scheduler "
                "that adds no noise."
            )

    def cached(self, config: CacheConfig) -> Tensor:
        """The pictures of the same calls with a method."""
        with accelerated(self.pipe, config):
            return self._render("calls")

    def decided(self, config: CacheConfig) -> tuple[Schedule, Tensor]:
        """A method's decisions in the last call, as a schedule, and the PSNR of each sample in dB.

        Raises:
            ScheduleError: the run cannot be frozen; see `RunReport.to_schedule`.
        """
        with accelerated(self.pipe, config):
            pictures = self._render("calls")
            schedule: Schedule = report_of(target_of(self.pipe)).to_schedule()
        return schedule, psnr(pictures, self.pictures)

    def psnrs(self, config: CacheConfig) -> Tensor:
        """PSNR of each sample with a method, in dB."""
        return psnr(self.cached(config), self.pictures)

    def psnr(self, config: CacheConfig) -> float:
        """Median PSNR over the samples with a method, in dB."""
        return float(self.psnrs(config).median())

    def seconds(self, config: CacheConfig | None) -> float:
        """Wall time of the same calls with a method; None: without a cache."""
        with nullcontext() if config is None else accelerated(self.pipe, config):
            start = time.perf_counter()
            self._render("calls")
            return time.perf_counter() - start

    def _repeats(self) -> bool:
        again = pictures_of(self.pipe(**rewound(self.calls[0])))
        return torch.equal(again, self.pictures[: len(again)])

    def _render(self, what: str) -> Tensor:
        calls = tqdm(self.calls, desc=what, leave=False, disable=len(self.calls) < 2)
        return torch.cat([pictures_of(self.pipe(**rewound(call))) for call in calls])
