"""What a method with sites inside costs over ten pictures in a row, its first run and all beginnings of runs included.

Every variant has its own copy of the same small Flux and computes everything. The pictures are made in turns: in each
round all variants make one, in a shuffled order. Processor time is measured. Where a copy lies in memory makes it 2 % faster or
slower, so each series builds the copies in another order, and what is subtracted is the mean of two plain ones. Where a cache
has to be told that another picture begins, telling it counts.
"""

import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from diffusers import FirstBlockCacheConfig, FluxTransformer2DModel, TaylorSeerCacheConfig

from diffcache.api import accelerate
from diffcache.attach.attach import denoising_run
from diffcache.evals.harness.intervals import interval_of_median
from diffcache.evals.speed.attach_cache_dit import NEARLY_NEVER, NEVER_REUSING, attach_cache_dit
from diffcache.evals.speed.beside_peers import BLOCKS, NEVER, caller, flux

PICTURES, TICKS = 10, 6

Picture = Callable[[], None]


def plain(net: FluxTransformer2DModel) -> Picture:
    call = caller(net)

    def picture() -> None:
        for i in range(TICKS):
            call(i)

    return picture


def ours(net: FluxTransformer2DModel, method: str, **options: Any) -> Picture:
    accelerate(net, method, **options)
    call = caller(net)

    def picture() -> None:
        with denoising_run(net, TICKS) as run:
            for i in range(TICKS):
                run.begin_step(i)
                call(i)

    return picture


def diffusers(net: FluxTransformer2DModel, config: Any) -> Picture:
    net.enable_cache(config)
    make = plain(net)

    def picture() -> None:
        with net.cache_context("cond"):
            make()
        net._reset_stateful_cache()

    return picture


def cache_dit(net: FluxTransformer2DModel, method: str, front: int, *, taylor: bool = False) -> Picture:
    """A cache-dit method that never reuses."""
    from cache_dit import refresh_context

    attach_cache_dit(net, method, front, taylor=taylor, **NEVER_REUSING)
    make = plain(net)

    def picture() -> None:
        refresh_context(net, num_inference_steps=TICKS)
        make()

    return picture


_blocks = {"interval": 1, "order": 1, "site": "block"}
_taylor = {"cache_interval": 2, "disable_cache_before_step": NEVER}
PLAIN = ("plain", "plain again (A/A)")
"""Two copies of the network without a cache."""
VARIANTS: dict[str, Callable[[FluxTransformer2DModel], Picture]] = {
    **dict.fromkeys(PLAIN, plain),
    "diffcache, fbcache": lambda net: ours(net, "fbcache", threshold=NEARLY_NEVER),
    "diffcache, taylorseer (stack)": lambda net: ours(net, "taylorseer", interval=1, order=1, site="stack"),
    "diffcache, taylorseer (every block)": lambda net: ours(net, "taylorseer", **_blocks),
    "diffcache, taylorseer (every sub-layer)": lambda net: ours(net, "taylorseer", interval=1, order=1),
    "Diffusers, FirstBlockCache": lambda net: diffusers(net, FirstBlockCacheConfig(threshold=NEARLY_NEVER)),
    "Diffusers, TaylorSeer (every attention)": lambda net: diffusers(net, TaylorSeerCacheConfig(**_taylor)),
    "Diffusers, TaylorSeer (every block)": lambda net: diffusers(
        net, TaylorSeerCacheConfig(cache_identifiers=BLOCKS, **_taylor)
    ),
    "cache-dit, F1": lambda net: cache_dit(net, "DBCache", 1),
    "cache-dit, F8 with TaylorSeer": lambda net: cache_dit(net, "DBCache", 8, taylor=True),
    "cache-dit, DBPrune (every block but one)": lambda net: cache_dit(net, "DBPrune", 1),
}


def series(double: int, single: int, order: random.Random) -> dict[str, list[float]]:
    """Processor seconds of each variant's ten pictures, on new copies; attaching does not count."""
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with torch.no_grad():
        built = order.sample(list(VARIANTS), len(VARIANTS))
        pictures = {name: VARIANTS[name](flux(double, single)) for name in built}
        for _ in range(PICTURES):
            for name in order.sample(list(VARIANTS), len(VARIANTS)):
                start = time.process_time()
                pictures[name]()
                times[name].append(time.process_time() - start)
    return times


def measure(repeats: int, double: int, single: int) -> list[dict[str, Any]]:
    """Own time of ten pictures in ms, as a sum and without the first one: medians over the series, and all values.

    The last column compares pictures one by one, the first of a series left out: the median and its interval of 95 %.
    """
    order = random.Random(0)
    found = [series(double, single, order) for _ in range(repeats)]
    plain_ones = [
        [sum(both) / 2 for both in zip(*(one[name] for name in PLAIN), strict=True)] for one in found
    ]
    rows = []
    for name in VARIANTS:
        own = [
            [1e3 * (a - b) for a, b in zip(one[name], bare, strict=True)]
            for one, bare in zip(found, plain_ones, strict=True)
        ]
        later = [each for one in own for each in one[1:]]
        rows.append(
            {
                "variant": name,
                "ten_pictures_own_ms": median(map(sum, own)),
                "ten_pictures_own_95": interval_of_median([sum(one) for one in own]),
                "ten_pictures_own_ms_all": [sum(one) for one in own],
                "first_picture_own_ms": median(one[0] for one in own),
                "later_picture_own_ms": median(later),
                "later_picture_own_95": interval_of_median(later),
                "plain_picture_ms": 1e3 * median(t for bare in plain_ones for t in bare),
            }
        )
    return rows
