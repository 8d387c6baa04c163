"""Calling a pipeline with a method that is attached for a while: under an observer, or for its decisions."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from diffcache import accelerate, report
from diffcache.attach.attach import detach
from diffcache.config import CacheConfig
from diffcache.engine.observers import Observer, observed
from diffcache.profiling.recording.loops import target_of
from diffcache.profiling.recording.pictures import rewound
from diffcache.reports.records import RunRecord
from diffcache.schedulers.errors import TargetError
from diffcache.schedulers.schedule import Schedule

Call = dict[str, Any]
"""Keyword arguments of a pipeline call."""


@contextmanager
def accelerated(pipe: Any, config: CacheConfig) -> Iterator[None]:
    """A method is attached for a while; whether the weights are quantised stays as it is."""
    target = target_of(pipe)
    accelerate(target, config)
    try:
        yield
    finally:
        detach(target)


def watched_run(pipe: Any, call: Call, observer: Observer) -> RunRecord:
    """One call of an accelerated pipeline under an observer; the record of its denoising loop.

    Raises:
        TargetError: no denoising loop was seen, or several.
    """
    with observed(observer):
        pipe(**rewound(call))
    records: list[RunRecord] = report(target_of(pipe)).records
    if len(records) != 1:
        raise TargetError(f"a call with one denoising loop can be calibrated; this one had {len(records)}.")
    return records[0]


def frozen(pipe: Any, call: Call, config: CacheConfig) -> Schedule:
    """A method's decisions in one call, as a schedule; the pipeline is plain afterwards.

    Raises:
        ScheduleError: the run cannot be frozen, as `RunReport.to_schedule` says.
    """
    with accelerated(pipe, config):
        pipe(**rewound(call))
        schedule: Schedule = report(target_of(pipe)).to_schedule()
        return schedule


def calls_hash(calls: Sequence[Call]) -> str:
    """Of what the calls were given, seeds, tensors and pictures included, as far as it can be written down."""
    text = repr(_written(calls))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _written(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_written(item) for item in value]
    if isinstance(value, dict):
        return {name: _written(item) for name, item in value.items()}
    if isinstance(value, torch.Generator):
        return value.initial_seed()
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().double().numpy()  # numpy has no bfloat16
    if hasattr(value, "tobytes"):
        return hashlib.sha256(value.tobytes()).hexdigest()
    return value if isinstance(value, (str, int, float, bool)) else None
