"""What a cache gains in time, against what its operations allow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from diffcache.api import accelerate, report
from diffcache.evals.language.benchmark import DECODINGS
from diffcache.evals.language.model_shapes import Shape
from diffcache.language.sampler.sampling import stream

TURN, PLAIN_CALLS = 32, 2
"""Calls of a turn: with the cache, and without it."""


@dataclass(frozen=True)
class Share:
    """What was gained.

    Attributes:
        faster: seconds of the plain model over seconds with the cache.
        bound: operations of the plain model over those with the cache.
        share: the one over the other.
    """

    faster: float
    bound: float
    share: float


def share_of_bound(shape: Shape, batch: int, method: str | None, decoding: str) -> Share:
    """One token is written at each call, on random weights, in CPU time of this process.

    The plain model takes turns with the cache, a few calls at a time, so that both see the same machine. Its calls all cost
    the same, so that a few in each turn stand for all.

    Args:
        shape: sizes of the model and its texts.
        batch: texts.
        method: None for the default.
        decoding: of `DECODINGS`.
    """
    prompts = shape.prompts(batch)
    options: dict[str, Any] = {"gen_length": shape.gen_length, "eos_early_stop": False, **DECODINGS[decoding]}
    cached = accelerate(shape.build("cpu"), method)
    plain_calls = stream(shape.build("cpu"), prompts, **options)
    cached_calls = stream(cached, prompts, **options)
    plain: list[float] = []
    with_cache: list[float] = []
    while turn := list(islice(seconds_of(cached_calls), TURN)):
        with_cache += turn
        plain += islice(seconds_of(plain_calls), PLAIN_CALLS)
    faster = sum(plain) / len(plain) * len(with_cache) / sum(with_cache)
    told = report(cached)
    allowed = told.plain_flops / told.flops
    return Share(round(faster, 2), round(allowed, 2), round(faster / allowed, 3))


def seconds_of(calls: Iterator[Any]) -> Iterator[float]:
    """CPU time of each call."""
    start = time.process_time()
    for _ in calls:
        yield time.process_time() - start
        start = time.process_time()
