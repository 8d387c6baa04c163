"""Full runs: the pictures of some calls without a cache, and how close a method comes to them."""

import inspect
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from diffcache.attach.attach import detach, report_of
from diffcache.config import CacheConfig
from diffcache.profiling.recording.calling import Call, accelerated, calls_hash
from diffcache.profiling.recording.journal import Entry, journal, key_of
from diffcache.profiling.recording.loops import target_of
from diffcache.profiling.recording.pictures import median_of, pictures_of, psnr, relative_errors, rewound
from diffcache.profiling.recording.processes import shared
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import EXPECTED_ERROR, Schedule
from diffcache.schedulers.schedule_file import as_json

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
        self._of_call = [entry.tensors["pictures"] for entry in self._rendered(None)]
        self.pictures = torch.cat(self._of_call)
        if not bool(self.pictures.isfinite().all()):
            raise ConfigError(
                "the pipeline's own pictures are not finite numbers: render without a cache first."
            )
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
        return torch.cat([entry.tensors["pictures"] for entry in self._rendered(config)])

    def measures(self, config: CacheConfig) -> Tensor:
        """How near each sample is with a method, by `measure`. The journal keeps these numbers, and no pictures."""
        journal().check_time()
        return torch.cat([entry.tensors["values"] for entry in self._rendered(config, measured=True)])

    def with_steps(self, steps: int) -> Tensor:
        """How near each sample of the plain pipeline is with another number of steps."""
        journal().check_time()
        entries = self._rendered(None, measured=True, num_inference_steps=steps)
        return torch.cat([entry.tensors["values"] for entry in entries])

    def decided(self, config: CacheConfig) -> tuple[Schedule, Tensor]:
        """A method's decisions in the last call, as a schedule, and what `measures` returns.

        The schedule's expected error is the one that was measured: the median over the samples, as a fraction of the full run's standard deviation.

        Raises:
            ScheduleError: the run cannot be frozen; see `RunReport.to_schedule`.
            Spent: as `cached`.
        """
        journal().check_time()
        entries = self._rendered(config, measured=True, freeze=True)
        values, errors = (
            torch.cat([entry.tensors[name] for entry in entries]) for name in ("values", "errors")
        )
        schedule = Schedule.from_json(entries[-1].facts, {})
        measured = {**schedule.measured, EXPECTED_ERROR: median_of(errors)}
        return replace(schedule, measured=measured), values

    def psnrs(self, config: CacheConfig) -> Tensor:
        """PSNR of each sample with a method, in dB."""
        return psnr(self.cached(config), self.pictures)

    def psnr(self, config: CacheConfig) -> float:
        """Median PSNR over the samples with a method, in dB."""
        return median_of(self.psnrs(config))

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

    def _rendered(
        self, config: CacheConfig | None, *, measured: bool = False, freeze: bool = False, **changed: Any
    ) -> list[Entry]:
        """Of each call the pictures, or what they measure; `freeze` notes the decisions of the last call as well.

        Args:
            **changed: arguments of all calls.
        """
        calls = [{**call, **changed} for call in self.calls]
        last = len(calls) - 1
        notes = journal()

        def made(i: int) -> Entry:
            pictures = pictures_of(self.pipe(**rewound(calls[i])))
            found = self._measured(pictures, i) if measured else {"pictures": pictures}
            if not (freeze and i == last):
                return Entry(found, {})
            decided: Schedule = report_of(target_of(self.pipe)).to_schedule()
            return Entry(found, as_json(decided))

        measure = name_of(self.measure) if measured else None
        keys = [
            key_of(
                "render-with-errors" if measured else "render",
                config=config,
                call=calls_hash([call]),
                frozen=freeze and i == last,
                measure=measure,
            )
            for i, call in enumerate(calls)
        ]
        known = all(map(notes.has, keys))
        with nullcontext() if config is None or known else accelerated(self.pipe, config):
            return shared(len(keys), lambda i: notes.entry(keys[i], lambda: made(i)))

    def _measured(self, pictures: Tensor, call: int) -> dict[str, Tensor]:
        """Of each picture of a call its "values", by the measure, and its "errors". Where one is not finite, no picture of the call is worth anything.

        Raises:
            ConfigError: the measure does not give a finite number for each sample.
        """
        if not bool(pictures.isfinite().all()):
            worthless = torch.full((len(pictures),), math.inf, dtype=torch.float64)
            return {"values": -worthless, "errors": worthless}
        values = torch.as_tensor(self.measure(pictures, self._of_call[call])).detach().double().cpu()
        if values.shape != (len(pictures),) or not bool(values.isfinite().all()):
            raise ConfigError(
                f"{getattr(self.measure, '__name__', 'the objective')} must give a finite number for each of "
                f"{len(pictures)} samples."
            )
        return {"values": values, "errors": relative_errors(pictures, self._of_call[call])}


def name_of(measure: Measure) -> str:
    """What tells one measure from another: its name, and its source where that can be read."""
    name = f"{getattr(measure, '__module__', '')}.{getattr(measure, '__qualname__', type(measure).__name__)}"
    try:
        return name + inspect.getsource(measure)
    except (OSError, TypeError):
        return name
