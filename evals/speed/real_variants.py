"""Ways to run a denoiser in a loop: plain, with our caches, with Diffusers' hooks, with cache-dit, with weights in host memory."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from diffcache.api import accelerate, report, restore
from diffcache.attach.attach import denoising_run
from diffcache.evals.speed.attach_cache_dit import attach_cache_dit

BeginTick = Callable[[int], None]
Figures = dict[str, Any]
"""What a variant tells of itself: "cache_bytes"."""
Variant = Callable[[nn.Module, int, Figures], AbstractContextManager[BeginTick]]
"""From a denoiser and a number of ticks to what is called before each tick."""

LAST = ("cache-dit", "group offload")
"""Variants whose names begin so are measured last: the one leaves its forward behind, the other keeps the weights away."""

PLAIN, OFFLOADED = "plain", "group offload"

NEVER = {"threshold": 0.0}
EVERY_SECOND = {"threshold": 1e9, "warmup_steps": 3, "max_consecutive_reuses": 1}
INTERVAL_2 = {"interval": 2, "warmup_steps": 3}


@contextmanager
def plain(net: nn.Module, ticks: int, figures: Figures) -> Iterator[BeginTick]:
    yield lambda i: None


def ours(method: str, **options: Any) -> Variant:
    """One of our methods."""

    @contextmanager
    def on(net: nn.Module, ticks: int, figures: Figures) -> Iterator[BeginTick]:
        accelerate(net, method, **options)
        try:
            with denoising_run(net, ticks, [1 - i / ticks for i in range(ticks)]) as run:
                yield run.begin_step
            figures["cache_bytes"] = report(net).cache_bytes
        finally:
            restore(net)

    return on


def hooks(kind: str, **options: Any) -> Variant:
    """One of Diffusers' own caches, by the name of its configuration's class."""

    @contextmanager
    def on(net: Any, ticks: int, figures: Figures) -> Iterator[BeginTick]:
        import diffusers

        net.enable_cache(getattr(diffusers, kind)(**options))
        try:
            with net.cache_context("cond"):
                yield lambda i: None
        finally:
            net.disable_cache()

    return on


def cache_dit(threshold: float, *, taylor: bool = False) -> Variant:
    """cache-dit's DBCache with one block in front, computed at every second tick at least."""

    @contextmanager
    def on(net: nn.Module, ticks: int, figures: Figures) -> Iterator[BeginTick]:
        from cache_dit import disable_cache

        settings = {"max_warmup_steps": 3, "max_continuous_cached_steps": 1}
        attach_cache_dit(net, "DBCache", 1, taylor=taylor, residual_diff_threshold=threshold, **settings)
        try:
            yield lambda i: None
        finally:
            disable_cache(net)

    return on


def offloaded(inner: Variant) -> Variant:
    """With Diffusers' group offloading of weights around it, on a stream of its own where the device has streams."""

    @contextmanager
    def on(net: Any, ticks: int, figures: Figures) -> Iterator[BeginTick]:
        device = next(net.parameters()).device
        if not hasattr(net, "_diffusers_hook"):
            net.enable_group_offload(
                onload_device=device, offload_device=torch.device("cpu"), offload_type="block_level",
                num_blocks_per_group=1, use_stream=device.type == "cuda",
            )  # fmt: skip
        with inner(net, ticks, figures) as begin:
            yield begin

    return on


def base_of(name: str) -> str:
    """The variant without a cache that this one is compared with: weights in host memory have one of their own."""
    return OFFLOADED if name.startswith(OFFLOADED) else PLAIN


def variants(model: str, *, compiled: bool) -> dict[str, Variant]:
    """All that are measured on a model of `RECIPES`, by name. What lies inside compiled blocks cannot be cached."""
    whole: dict[str, Variant] = {
        PLAIN: plain,
        "plain again (A/A)": plain,
        "ours trajectory, never": ours("trajectory", **NEVER),
        "ours trajectory": ours("trajectory"),
        "ours trajectory, speedup 2": ours("trajectory", speedup=2.0),
        "ours easycache, every 2nd": ours("easycache", **EVERY_SECOND),
        "ours uniform 2": ours("uniform", **INTERVAL_2),
        "ours uniform 2 int8": ours("uniform", **INTERVAL_2, cache_dtype="int8"),
    }
    if model == "sdxl":
        return {**whole, "ours deepcache 2": ours("deepcache", interval=2)}
    inside: dict[str, Variant] = {
        **whole,
        "ours fbcache, never": ours("fbcache", **NEVER),
        "ours fbcache, every 2nd": ours("fbcache", **EVERY_SECOND),
        "ours uniform 2 blocks": ours("uniform", site="block", **INTERVAL_2),
        "ours taylorseer, never": ours("taylorseer", interval=1, order=1),
        "ours taylorseer 2": ours("taylorseer", order=1, **INTERVAL_2),
    }
    if model == "sd35":
        return inside  # neither Diffusers' hooks nor cache-dit know its class
    if compiled:
        inside = {name: variant for name, variant in inside.items() if "taylorseer" not in name}
    return {
        **inside,
        "diffusers FBC, never": hooks("FirstBlockCacheConfig", threshold=0.0),
        "diffusers FBC, all": hooks("FirstBlockCacheConfig", threshold=1e9),
        "diffusers TaylorSeer 2": hooks("TaylorSeerCacheConfig", cache_interval=2, disable_cache_before_step=3),
        "cache-dit F1, never": cache_dit(0.0),
        "cache-dit F1, every 2nd": cache_dit(1e9),
        "cache-dit F1 TaylorSeer, every 2nd": cache_dit(1e9, taylor=True),
    }  # fmt: skip


def offload_variants() -> dict[str, Variant]:
    """Features in host memory beside features on the device; then the same with the weights in host memory."""
    sub_layers = {"site": "sub-layer", "order": 1, **INTERVAL_2}
    found: dict[str, Variant] = {
        PLAIN: plain,
        "ours uniform 2 sub-layers": ours("uniform", **sub_layers),
        "ours uniform 2 sub-layers, host memory": ours("uniform", **sub_layers, cache_device="cpu"),
        "ours uniform 2 sub-layers, host memory, int8": ours(
            "uniform", **sub_layers, cache_device="cpu", cache_dtype="int8"
        ),
    }
    blocks = ours("uniform", site="block", **INTERVAL_2, cache_device="cpu")
    return {
        **found,
        OFFLOADED: offloaded(plain),
        f"{OFFLOADED}, ours uniform 2": offloaded(ours("uniform", **INTERVAL_2)),
        f"{OFFLOADED}, ours uniform 2 blocks, host memory": offloaded(blocks),
    }
