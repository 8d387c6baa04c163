"""Full runs: the pictures of some calls without a cache, and how close a method comes to them."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from diffcache.attach.attach import detach, report_of
from diffcache.config import CacheConfig
from diffcache.profiling.recording.calling import Call, accelerated, calls_hash
from diffcache.profiling.recording.journal import Entry, journal, key_of
from diffcache.profiling.recording.loops import target_of
from diffcache.profiling.recording.pictures import pictures_of, psnr, rewound
from diffcache.profiling.recording.processes import shared
from diffcache.schedulers.artifact import as_json
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import Schedule

Measure = Callable[[Tensor, Tensor], Tensor]
"""From pictures and the full runs' [N, ..., H, W] in 0..1 to a number for each sample [N]; the larger, the better."""


class FullRuns:
    """The full runs of some calls, with which methods are compared. They are rendered at once.

    What the open journal has is not rendered again. Under `accelerate launch` each process renders a part of the calls.

    Args:
        pipe: a pipeline or a `Loop`; it is plain afterwards.
        calls: keyword arguments of each call. Their generators are set back to their seeds for every render.
        measure: how near pictures are to the full runs'.

    Attributes:
        pictures: [N, ..., H, W] in 0..1, of all calls.

    Raises:
        ConfigError: a call that is repeated gives other pictures.
    """

    def __init__(self, pipe: Any, calls: Sequence[Call], measure: Measure = psnr) -> None:
        detach(target_of(pipe))
        self.pipe = pipe
        self.calls = calls
        self.measure = measure
        state = torch.get_rng_state()
        self.pictures = self._pictures(None)
        drew_numbers = not torch.equal(state, torch.get_rng_state())
        if drew_numbers and not self._repeats():
            raise ConfigError(
                "the same call gives other pictures each time: give it a generator, or the pipeline a noise scheduler "
                "that adds no noise."
            )

    def cached(self, config: CacheConfig) -> Tensor:
        """The pictures of the same calls with a method.

        Raises:
            Spent: the open journal's time is over.
        """
        journal().check_time()
        return self._pictures(config)

    def decided(self, config: CacheConfig) -> tuple[Schedule, Tensor]:
        """A method's decisions in the last call, as a schedule, and what its pictures measure.

        Raises:
            ScheduleError: the run cannot be frozen; see `RunReport.to_schedule`.
            Spent: as `cached`.
        """
        journal().check_time()
        entries = self._rendered(config, freeze=True)
        pictures = torch.cat([entry.tensors["pictures"] for entry in entries])
        return Schedule.from_json(entries[-1].facts, {}), self.measure(pictures, self.pictures)

    def measures(self, config: CacheConfig) -> Tensor:
        """How near each sample is with a method, by `measure`."""
        return self.measure(self.cached(config), self.pictures)

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
            for call in self.calls:
                self.pipe(**rewound(call))
            return time.perf_counter() - start

    def _repeats(self) -> bool:
        again = pictures_of(self.pipe(**rewound(self.calls[0])))
        return torch.equal(again, self.pictures[: len(again)])

    def _pictures(self, config: CacheConfig | None) -> Tensor:
        return torch.cat([entry.tensors["pictures"] for entry in self._rendered(config, freeze=False)])

    def _rendered(self, config: CacheConfig | None, *, freeze: bool) -> list[Entry]:
        """The pictures of each call; `freeze` notes the decisions of the last one as well."""
        last = len(self.calls) - 1
        notes = journal()

        def made(i: int) -> Entry:
            pictures = pictures_of(self.pipe(**rewound(self.calls[i])))
            if not (freeze and i == last):
                return Entry({"pictures": pictures}, {})
            decided: Schedule = report_of(target_of(self.pipe)).to_schedule()
            return Entry({"pictures": pictures}, as_json(decided))

        keys = [
            key_of("render", config=config, call=calls_hash([call]), frozen=freeze and i == last)
            for i, call in enumerate(self.calls)
        ]
        known = all(map(notes.has, keys))
        with nullcontext() if config is None or known else accelerated(self.pipe, config):
            return shared(len(keys), lambda i: notes.entry(keys[i], lambda: made(i)))
