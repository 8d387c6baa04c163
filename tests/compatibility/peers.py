"""Other caches for Diffusers, put on the pipelines of the zoo as their users would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from diffusers import (
    FirstBlockCacheConfig,
    FluxPipeline,
    MagCacheConfig,
    TaylorSeerCacheConfig,
    WanPipeline,
)
from support.harness import STEPS
from zoo.pipeline_case import quiet
from zoo.pipelines import CASES

FLUX, WAN = "FluxPipeline", "WanPipeline"
CACHE_DIT, DIFFUSERS, BOTH = "cache-dit", "Diffusers", "both"
FAILS, NOT_RUN = "fails", "not run"
ALWAYS = 1e9
"""A threshold at which everything is reused that may be."""


def build(name: str = FLUX) -> Any:
    return CASES[name].build()


def sharing(pipe: Any) -> Any:
    """Another pipeline over the same components, with a noise scheduler of its own."""
    own = type(pipe.scheduler).from_config(pipe.scheduler.config)
    return quiet(type(pipe)(**{**pipe.components, "scheduler": own}))


@contextmanager
def cache_dit() -> Iterator[Any]:
    """The package; what it has done to the pipelines' classes is undone at the end."""
    package = pytest.importorskip("cache_dit", reason="pip install diffcache[peers]")
    before = {cls: dict(vars(cls)) for cls in (FluxPipeline, WanPipeline)}
    try:
        yield package
    finally:
        for cls, members in before.items():
            for name in set(vars(cls)) - set(members):
                delattr(cls, name)
            for name, member in members.items():
                if vars(cls)[name] is not member:
                    setattr(cls, name, member)


def cached(package: Any, target: Any, threshold: float = ALWAYS, warmup: int = 1, **options: Any) -> Any:
    """With cache-dit, one block computed in front."""
    config = package.DBCacheConfig(
        Fn_compute_blocks=1,
        Bn_compute_blocks=0,
        residual_diff_threshold=threshold,
        max_warmup_steps=warmup,
        **options,
    )
    package.enable_cache(target, cache_config=config)
    return target


def hooked(config: Any, name: str = FLUX) -> Any:
    """A pipeline with one of Diffusers' caches."""
    pipe = build(name)
    pipe.transformer.enable_cache(config)
    return pipe


def first_block() -> FirstBlockCacheConfig:
    return FirstBlockCacheConfig(threshold=ALWAYS)


def mag(steps: int = STEPS) -> MagCacheConfig:
    return MagCacheConfig(num_inference_steps=steps, mag_ratios=[1.0] * steps, threshold=1.0)


def taylor(**options: Any) -> TaylorSeerCacheConfig:
    return TaylorSeerCacheConfig(cache_interval=3, disable_cache_before_step=2, **options)
