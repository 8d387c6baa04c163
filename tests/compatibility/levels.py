"""The levels at which a method caches, and what must hold at each when a pipeline has some feature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.harness import STEPS, render
from torch import Tensor
from zoo.pipelines import CASES

from diffcache import TargetError, accelerate, report, restore

LEVELS = ("whole model", "stack", "block", "sub-layer")
SITES = {"whole model": "model", "stack": "stack", "block": "block", "sub-layer": "sub-layer"}
UNET_SITES = {**SITES, "stack": "depth 1"}


def slow(*values: Any) -> Any:
    """A parameter set for `make test-all` only."""
    return pytest.param(*values, marks=pytest.mark.slow)


each_level = pytest.mark.parametrize("level", ["whole model", slow("stack"), slow("block"), "sub-layer"])

Feature = Callable[[Any], object]
"""Puts a feature on a pipeline."""

Cell = Callable[..., None]
"""The fixture that writes down one cell of the table."""


def site(name: str, level: str) -> str:
    """Where a pipeline of the zoo is cached at a level; a UNet has depths, not one stack."""
    return (UNET_SITES if "unet" in CASES[name].denoisers else SITES)[level]


def with_cache(name: str, feature: Feature, level: str, interval: int, *, cache_first: bool) -> Any:
    pipe = CASES[name].build()
    if not cache_first:
        feature(pipe)
    accelerate(pipe, "uniform", interval=interval, site=site(name, level))
    if cache_first:
        feature(pipe)
    return pipe


EVERY_SECOND = (0, 2, 4, STEPS - 1)


def verdict(
    name: str, feature: Feature, level: str, computed: Sequence[int] = EVERY_SECOND, **call: Any
) -> str:
    """ "works", or why it is refused. Raises AssertionError where something is wrong.

    Works means, whether the cache or the feature came first: with everything computed, and after `restore`, the picture
    is to the bit the plain pipeline's with the feature. With only the ticks in `computed` computed it is another one,
    and the same in both orders.
    """
    plain = CASES[name].build()
    feature(plain)
    expected = render(plain, name, **call)
    try:
        return _works(name, feature, level, expected, computed, call)
    except TargetError as error:
        return f"no: {error}"


def _works(
    name: str, feature: Feature, level: str, expected: Tensor, computed: Sequence[int], call: dict[str, Any]
) -> str:
    images = []
    for cache_first in (False, True):
        pipe = with_cache(name, feature, level, 1, cache_first=cache_first)
        assert torch.equal(render(pipe, name, **call), expected)
        accelerate(pipe, "uniform", interval=2, site=site(name, level))
        images.append(render(pipe, name, **call))
        assert report(pipe).computed_ticks == list(computed)
        assert torch.equal(render(restore(pipe), name, **call), expected)
    assert torch.equal(*images)
    assert not torch.equal(images[0], expected)
    return "works"
