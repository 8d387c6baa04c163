"""Calls of a pipeline: how prompts become calls, and calls with a method attached."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from diffcache.attach.attach import attach, detach, report_of
from diffcache.config import CacheConfig
from diffcache.engine.observers import Observer, observed
from diffcache.profiling.recording.loops import target_of
from diffcache.profiling.recording.pictures import rewound
from diffcache.reports.records import RunRecord
from diffcache.schedulers.errors import ConfigError, TargetError

Call = dict[str, Any]
"""Keyword arguments of a pipeline call."""


def refuse_no_calls(calls: Sequence[Call]) -> None:
    """Refuses an empty list of calls, with ConfigError."""
    if not calls:
        raise ConfigError("calls: give at least one.")


def calls_of(prompts: Sequence[str | Call], seed: int = 0, **options: Any) -> list[Call]:
    """Calls of a pipeline with these prompts. Prompt i is drawn with the seed `seed + i`.

    Args:
        prompts: texts, or whole calls as keyword arguments (for pipelines without a prompt).
        seed: of the first prompt.
        **options: what every call gets as well (`num_inference_steps`, `height`, ...).
    """
    generators = [torch.Generator().manual_seed(seed + i) for i in range(len(prompts))]
    return [
        {"generator": generator, **options, **({"prompt": prompt} if isinstance(prompt, str) else prompt)}
        for prompt, generator in zip(prompts, generators, strict=True)
    ]


@contextmanager
def accelerated(pipe: Any, config: CacheConfig) -> Iterator[None]:
    """Attaches a method, and detaches it at the end. Quantised weights stay quantised."""
    target = target_of(pipe)
    attach(target, config.resolved())
    try:
        yield
    finally:
        detach(target)


def watched_run(pipe: Any, call: Call, observer: Observer) -> RunRecord:
    """Calls an accelerated pipeline under an observer, and returns the record of its denoising loop.

    Raises:
        TargetError: the call had no denoising loop, or several.
    """
    with observed(observer):
        pipe(**rewound(call))
    records: list[RunRecord] = report_of(target_of(pipe)).records
    if len(records) != 1:
        raise TargetError(f"a call with one denoising loop can be calibrated; this one had {len(records)}.")
    return records[0]


def calls_hash(calls: Sequence[Call]) -> str:
    """Hash of the arguments of some calls: texts, numbers, seeds, tensors and pictures. Other objects do not count."""
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
        shape = value.shape if hasattr(value, "shape") else getattr(value, "size", ())  # a PIL picture's size
        return [*shape, hashlib.sha256(value.tobytes()).hexdigest()]
    return value if isinstance(value, (str, int, float, bool)) else None
