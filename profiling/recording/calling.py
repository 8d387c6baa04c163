"""Calls of a pipeline: how prompts become calls, which of them are held out, and calls with a method attached."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

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


class Split(NamedTuple):
    """Calls in two halves.

    Attributes:
        fitted: the calls that a search or a calibration works on.
        held_out: the calls on which its result is checked.
    """

    fitted: list[Call]
    held_out: list[Call]


def refuse_no_calls(calls: Sequence[Call]) -> None:
    """Refuses an empty list of calls, with ConfigError."""
    if not calls:
        raise ConfigError("calls: give at least one.")


def hold_out(calls: Sequence[Call]) -> Split:
    """Holds every second call out.

    Raises:
        ConfigError: there is only one call.
    """
    if len(calls) < 2:
        raise ConfigError("give at least two calls: every second one is held out, to check the result on.")
    return Split(list(calls[::2]), list(calls[1::2]))


def calls_of(
    prompts: Sequence[str | Call], seed: int = 0, *, batch: int | None = None, **options: Any
) -> list[Call]:
    """Calls of a pipeline with these prompts. Prompt i is drawn with the seed `seed + i`.

    Args:
        prompts: texts, or whole calls as keyword arguments (for pipelines without a prompt).
        seed: of the first prompt.
        batch: prompts in a call, which then has lists of prompts and generators; None: one prompt in each call. Whole calls
            cannot be batched.
        **options: what every call gets as well (`num_inference_steps`, `height`, ...).
    """
    generators = [torch.Generator().manual_seed(seed + i) for i in range(len(prompts))]
    if batch is None:
        return [
            {"generator": generator, **options, **({"prompt": prompt} if isinstance(prompt, str) else prompt)}
            for prompt, generator in zip(prompts, generators, strict=True)
        ]
    return [
        {"prompt": list(prompts[i : i + batch]), "generator": generators[i : i + batch], **options}
        for i in range(0, len(prompts), batch)
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
