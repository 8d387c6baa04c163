"""Every method on tiny pipelines: all-compute is the plain pipeline, reuse is finite, and memory is what the table says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.harness import STEPS, reference
from zoo.denoisers import CASES as DENOISERS
from zoo.pipelines import CASES

from diffcache import CacheConfig, accelerate, denoising_run, discover, methods, report, restore

PIPELINE = {
    "deepcache": "StableDiffusionPipeline",
    "tgate": "WanPipeline",
    "fastercache": "FluxPipeline-true-cfg",
}
ALL_COMPUTE = {
    "interval": 1, "temporal_interval": 1, "cross_interval": 1, "guidance_interval": 1, "gate": 1.0, "threshold": 0.0, "speedup": 1.0,
    "delta": 0.0, "growth": 0.0, "budget": 50,
}  # fmt: skip
REUSING: dict[str, dict[str, Any]] = {
    "trajectory": {"threshold": 100.0},
    "easycache": {"threshold": 0.5, "warmup_steps": 1},
    "fbcache": {"threshold": 0.5},
    "spectrum": {"warmup_steps": 2},
    "seacache": {"threshold": 5.0},
    "pab": {"window": (-1.0, 2.0)},
    "regione": {"delta": 0.9},
    "fastercache": {"window": (-1.0, 2.0), "guidance_window": (-1.0, 2.0)},
}


@pytest.mark.parametrize("method", CacheConfig.methods())
def test_all_compute_is_the_plain_pipeline_to_the_bit(method: str) -> None:
    name = PIPELINE.get(method, "FluxPipeline")
    fields = methods()[method].__dataclass_fields__
    options = {key: value for key, value in ALL_COMPUTE.items() if key in fields}
    pipe = accelerate(CASES[name].build(), method, **options)
    assert torch.equal(CASES[name].render(pipe, 0, STEPS), reference(name))
    assert report(pipe).compute_fraction == 1
    restore(pipe)
    assert torch.equal(CASES[name].render(pipe, 0, STEPS), reference(name))


@pytest.mark.parametrize("method", CacheConfig.methods())
def test_reuse_is_finite_and_the_same_twice(method: str) -> None:
    name = PIPELINE.get(method, "FluxPipeline")
    pipe = accelerate(CASES[name].build(), method, **REUSING.get(method, {}))
    first = CASES[name].render(pipe, 0, STEPS)
    assert first.isfinite().all()
    assert report(pipe).compute_fraction < 1
    assert torch.equal(CASES[name].render(pipe, 0, STEPS), first)
    frozen = report(pipe).to_schedule()
    assert torch.equal(CASES[name].render(accelerate(pipe, frozen), 0, STEPS), first)


MEMORY: list[tuple[str, dict[str, Any], str, tuple[str, ...], int]] = [
    # method, options, denoiser, kinds of the places, features kept of each
    ("magcache", {"ratios": (1.0, 1.0)}, "FluxTransformer2DModel", ("stack",), 1),
    ("fora", {}, "FluxTransformer2DModel", ("joint-attention", "feed-forward", "parallel"), 1),
    (
        "taylorseer",
        {"order": 1},
        "FluxTransformer2DModel",
        ("joint-attention", "feed-forward", "parallel"),
        2,
    ),
    (
        "taylorseer",
        {"order": 2},
        "WanTransformer3DModel",
        ("self-attention", "cross-attention", "feed-forward"),
        3,
    ),
    ("pab", {}, "WanTransformer3DModel", ("self-attention", "cross-attention"), 1),
    (
        "fastercache",
        {"guidance_interval": 1},
        "WanTransformer3DModel",
        ("self-attention", "cross-attention"),
        2,
    ),
    ("tgate", {}, "WanTransformer3DModel", ("cross-attention",), 1),
]


@pytest.mark.parametrize(("method", "options", "name", "kinds", "depth"), MEMORY)
def test_memory_is_so_many_features_of_each_place(
    method: str, options: dict[str, Any], name: str, kinds: tuple[str, ...], depth: int
) -> None:
    case = DENOISERS[name]
    net, inputs = case.build(), case.inputs(torch.Generator().manual_seed(0), 1)
    outputs = [site for site in discover(net, **inputs) if site.kind in kinds]
    elements = sum(torch.Size(shape).numel() for site in outputs for shape in site.streams)
    width = torch.float64 if kinds == ("stack",) else torch.float32  # residuals are kept one precision wider
    accelerate(net, method, warmup_steps=3, **options)
    with torch.no_grad(), denoising_run(net, 8) as run:
        for i in range(8):
            run.begin_step(i)
            net(**inputs)
    assert report(net).cache_bytes == depth * elements * width.itemsize
