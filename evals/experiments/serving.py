"""Continuous batching on a testbed: no cache, a cache for each request, and one cache that all requests share."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import process_time
from typing import Any

import torch
from torch import Tensor

from diffcache.api import accelerate, restore
from diffcache.attach.attach import denoising_run
from diffcache.evals.harness.step_loop import Sample, StepLoop
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.server.serving import serving

TESTBED = "sd3"
STEPS = (20, 28, 40)
AT_ONCE = 8
"""The most requests in a batch."""
RATE = 0.3
"""Requests that arrive at each batch, on average."""

SPEEDUPS = (1.5, 2.0, 3.0)
METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("easycache", {"threshold": 0.05, "warmup_steps": 2}),
    ("easycache", {"threshold": 0.1, "warmup_steps": 2}),
    ("uniform", {"interval": 2}),
    ("uniform", {"interval": 3}),
)


@dataclass(frozen=True)
class Asked:
    """A request of the simulation.

    Attributes:
        arrival: number of batches before it.
    """

    prompt: str
    seed: int
    steps: int
    arrival: int


@dataclass(frozen=True)
class Served:
    """What one simulation gave.

    Attributes:
        pictures: by request, [N, 3, H, W].
        cpu_seconds: processor time of all batches, without texts and decoding.
        batches: how many there were.
        own_ms: time in a denoiser call outside its forward, mean over batches, in milliseconds; 0 without a server.
        hit_rate: share of the requests' calls that was reused.
    """

    pictures: Tensor
    cpu_seconds: float
    batches: int
    own_ms: float = 0.0
    hit_rate: float = 0.0


Denoise = Callable[[list[Sample]], list[Tensor]]

Run = Callable[[StepLoop, Sequence[Asked]], Served]

LONG = 1000
"""Steps of a run that all requests share; it is begun anew when they are over."""


def requests(count: int) -> list[Asked]:
    """Requests of random lengths, which arrive at random."""
    dice, arrival, asked = random.Random(0), 0.0, list[Asked]()
    for seed, prompt in enumerate(zoo.prompts(TESTBED, count, "heldout")):
        arrival += dice.expovariate(RATE)
        asked.append(Asked(prompt, 1000 + seed, dice.choice(STEPS), int(arrival)))
    return asked


def continuous(loop: StepLoop, asked: Sequence[Asked], denoise: Denoise) -> Served:
    """Continuous batching: every batch takes a step of each request that is there, up to `AT_ONCE`."""
    samples = {one: loop.prepare(one.prompt, one.seed, one.steps) for one in asked}
    waiting, live, batches, seconds = list(asked), list[Asked](), 0, 0.0
    while waiting or live:
        while waiting and waiting[0].arrival <= batches and len(live) < AT_ONCE:
            live.append(waiting.pop(0))
        batches += 1
        if live:
            began = process_time()
            there = [samples[one] for one in live]
            for sample, output in zip(there, denoise(there), strict=True):
                loop.advance(sample, output)
            seconds += process_time() - began
        live = [one for one in live if not samples[one].done]
    pictures = torch.stack([loop.decode(samples[one]) for one in asked])
    return Served(pictures, seconds, batches)


def with_own_caches(loop: StepLoop, asked: Sequence[Asked], config: dict[str, Any]) -> Served:
    """A cache for each request."""
    opened: dict[int, Any] = {}
    with serving(loop.pipe.transformer, shared=()) as server:

        def denoise(samples: list[Sample]) -> list[Tensor]:
            entries = []
            for sample in samples:
                if id(sample) not in opened:
                    opened[id(sample)] = server.request(
                        sample.num_steps,
                        noise_scheduler=sample.noise_scheduler,
                        guidance="batched",
                        **config,
                    )
                entries.append((opened[id(sample)], sample.step))
            with server.batch(entries):
                outputs = loop.denoise(samples)
            for request, step in entries:
                if step == request.num_steps - 1:
                    request.finish()
            return outputs

        served = continuous(loop, asked, denoise)
        stats = server.stats()
    own = 1000 * stats.own_seconds / stats.batches
    return Served(served.pictures, served.cpu_seconds, served.batches, own, stats.hit_rate)


def with_one_cache(
    loop: StepLoop, asked: Sequence[Asked], method: str, options: dict[str, Any], *, notices: bool
) -> Served:
    """One cache for the denoiser, as libraries that keep one state for a model have it.

    Args:
        notices: it begins anew whenever the batch has other requests than before; else only when its size changes.
    """
    denoiser = accelerate(loop.pipe.transformer, method, tail_steps=0, **options)
    before, tick, reused, calls = list[int](), 0, 0.0, 0
    with ExitStack() as stack:
        run = stack.enter_context(denoising_run(denoiser, LONG))

        def denoise(samples: list[Sample]) -> list[Tensor]:
            nonlocal before, tick, run, reused, calls
            now = [id(sample) for sample in samples]
            if len(now) != len(before) or (notices and now != before) or tick == LONG:
                stack.close()
                run, tick = stack.enter_context(denoising_run(denoiser, LONG)), 0
            before = now
            run.begin_step(tick)
            outputs = loop.denoise(samples)
            tick += 1
            calls += len(samples)
            record = run.records[-1]
            reused += len(samples) * (1 - record.share_since(len(record) - 1))
            return outputs

        served = continuous(loop, asked, denoise)
    restore(denoiser)
    return Served(served.pictures, served.cpu_seconds, served.batches, hit_rate=reused / calls)


def contenders() -> Iterator[tuple[str, str, Run]]:
    """Name, setting, and what runs it."""
    yield "no cache", "", lambda loop, asked: continuous(loop, asked, loop.denoise)
    yield "served without caches", "", lambda loop, asked: with_own_caches(loop, asked, {})
    for speedup in SPEEDUPS:
        config: dict[str, Any] = {"speedup": speedup}
        yield "a cache for each request", f"speedup={speedup:g}", partial(with_own_caches, config=config)
    for method, options in METHODS:
        setting = ", ".join([method, *(f"{name}={value:g}" for name, value in options.items())])
        config = {"config": method, **options}
        yield "a cache for each request", setting, partial(with_own_caches, config=config)
        for name, notices in (("one cache, begun anew", True), ("one cache", False)):
            run = partial(with_one_cache, method=method, options=options, notices=notices)
            yield name, setting, run


def throughput(count: int) -> dict[str, Any]:
    """Each contender's requests for a second of processor time, and its median PSNR in dB to the requests without a cache."""
    loop, asked = StepLoop(zoo.load(TESTBED)), requests(count)
    full: Served | None = None
    rows = []
    for name, setting, run in contenders():
        served = run(loop, asked)
        full = full or served
        rows.append(
            {
                "contender": name,
                "setting": setting,
                "requests_per_second": round(count / served.cpu_seconds, 2),
                "psnr": None if served is full else _decibels(served.pictures, full.pictures),
                "hit_rate": round(served.hit_rate, 3),
                "batches": served.batches,
                "own_ms": round(served.own_ms, 2),
            }
        )
    return {"requests": count, "steps": STEPS, "at_once": AT_ONCE, "rate": RATE, "rows": rows}


def _decibels(pictures: Tensor, full: Tensor) -> float:
    """Median over the requests."""
    values: list[float] = psnr(pictures, full).tolist()
    return round(median(values), 1)
