"""`cache_dtype` and `cache_device` on whole pipelines: sizes, exactness, and what is left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.harness import accelerated, reference, render
from zoo.pipelines import CASES

from diffcache import accelerate, report
from diffcache.config import CacheConfig
from diffcache.store.formats import DTYPES, EightBits
from diffcache.store.placement import HostMemory

PLACES = [
    ("WanPipeline", {"order": 1}),
    ("StableDiffusionPipeline", {"order": 1, "site": "depth 1"}),
    ("FluxPipeline-true-cfg", {"order": 1, "site": "stack"}),
    ("FluxPipeline-true-cfg", {"site": "sub-layer"}),
]
each_place = pytest.mark.parametrize(("name", "options"), PLACES, ids=str)


def held(name: str, **options: Any) -> tuple[torch.Tensor, int]:
    pipe = accelerated(name, "uniform", interval=3, **options)
    return render(pipe, name), report(pipe).cache_bytes


@each_place
def test_eight_bits_take_half_of_bfloat16_and_a_quarter_of_float32(
    name: str, options: dict[str, Any]
) -> None:
    _, half = held(name, cache_dtype="bfloat16", **options)
    for dtype in ("int8", "float8"):
        picture, eight = held(name, cache_dtype=dtype, **options)
        assert picture.isfinite().all()
        assert half / 2 <= eight <= 0.56 * half  # tiny networks have rows of 32 and fewer


@each_place
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_compute_is_exact_in_every_format(name: str, options: dict[str, Any], dtype: str) -> None:
    pipe = accelerated(name, "uniform", interval=1, cache_dtype=dtype, **options)
    assert torch.equal(render(pipe, name), reference(name))


def test_a_recorded_run_replays_in_the_format_that_it_was_recorded_in() -> None:
    name = "WanPipeline"
    pipe = accelerated(name, "easycache", threshold=0.4, warmup_steps=0, cache_dtype="int8")
    picture = render(pipe, name)
    told = report(pipe)
    assert told.compute_fraction < 1
    replayed = accelerate(CASES[name].build(), told.to_schedule())
    assert torch.equal(render(replayed, name), picture)
    assert not torch.equal(
        render(accelerate(replayed, told.to_schedule(), cache_dtype="float8"), name), picture
    )


@each_place
def test_host_memory_changes_nothing_but_where_the_cache_is(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without another device features are carried from the host to the host, by the same path."""
    picture, size = held(name, cache_dtype="int8", **options)
    memory = HostMemory()
    monkeypatch.setattr(CacheConfig, "format", lambda self, run: EightBits(torch.int8, memory))
    pipe = accelerated(name, "uniform", interval=3, **options)
    assert torch.equal(render(pipe, name), picture)
    assert report(pipe).host_bytes > 0.9 * size
    assert report(pipe).cache_bytes + report(pipe).host_bytes >= size
    assert "in host memory" in report(pipe).summary()


def test_on_the_cpu_host_memory_is_where_everything_is_anyway() -> None:
    pipe = accelerated("WanPipeline", "uniform", cache_device="cpu")
    render(pipe, "WanPipeline")
    assert report(pipe).host_bytes == 0 < report(pipe).cache_bytes
