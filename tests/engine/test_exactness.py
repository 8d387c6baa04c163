"""All-compute runs and restored pipelines are bit-identical to plain ones, and reports tell what really ran."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.harness import (
    NOT_OBSERVED,
    STEPS,
    all_calls,
    computed_calls,
    counted,
    plain,
    reference,
    reference_calls,
    render,
    uniform_by_hand,
)
from zoo.pipelines import CASES

from diffcache import accelerate, report, restore

ALL_COMPUTE = [("easycache", {"threshold": 0}), ("uniform", {"interval": 1})]
REUSING = [
    ("uniform", {"interval": 2}),
    ("uniform", {"interval": 3, "order": 1, "tail_steps": 0}),
    ("easycache", {"threshold": 0.5, "warmup_steps": 0}),
]
ids = [f"{method}-{'-'.join(map(str, options.values()))}" for method, options in REUSING]

PASSES = {
    "FluxPipeline": 1,
    "FluxPipeline-true-cfg": 2,
    "StableDiffusion3Pipeline": 1,
    "StableDiffusionPipeline": 1,
    "StableDiffusionXLPipeline": 1,
    "WanPipeline": 2,
}
"""Pipelines whose denoiser returns what it takes in shape, and how many guidance passes they make."""


@functools.cache
def shared(name: str) -> Any:
    """One pipeline for all tests here: each accelerates it and restores it."""
    return CASES[name].build()


@contextmanager
def attached(name: str, method: str, **options: Any) -> Iterator[Any]:
    pipe = accelerate(shared(name), method, **options)
    try:
        yield pipe
    finally:
        restore(pipe)


@pytest.mark.parametrize(("method", "options"), ALL_COMPUTE, ids=["easycache", "uniform"])
@pytest.mark.parametrize("name", CASES)
def test_all_compute_is_bit_identical(name: str, method: str, options: dict[str, Any]) -> None:
    with attached(name, method, **options) as pipe, counted(pipe, CASES[name].denoisers) as calls:
        assert torch.equal(render(pipe, name), reference(name))
        told = report(pipe)
    assert calls == reference_calls(name) == computed_calls(told)
    assert told.compute_fraction == 1.0
    assert told.decisions.equal(told.called)


@pytest.mark.parametrize("name", CASES)
def test_restored_is_bit_identical(name: str) -> None:
    pipe = shared(name)
    parts = {key: (thing, type(thing)) for key, thing in pipe.components.items()}
    own = type(pipe)
    with attached(name, "uniform", interval=2):
        render(pipe, name)
    with counted(pipe, CASES[name].denoisers) as calls:
        assert torch.equal(render(pipe, name), reference(name))
    assert calls == reference_calls(name)
    assert type(pipe) is own
    for key, (thing, cls) in parts.items():
        assert pipe.components[key] is thing
        assert type(thing) is cls


@pytest.mark.parametrize(("method", "options"), REUSING, ids=ids)
@pytest.mark.parametrize("name", CASES)
def test_reusing_is_told_truthfully(name: str, method: str, options: dict[str, Any]) -> None:
    with attached(name, method, **options) as pipe, counted(pipe, CASES[name].denoisers) as calls:
        image = render(pipe, name)
        told = report(pipe)
    assert computed_calls(told) == calls
    assert all_calls(told) == reference_calls(name)
    if name not in NOT_OBSERVED:
        assert told.decisions.sum() == calls.total()
    weights = {site: record.parameters[site] for record in told.records for site in record.parameters}
    done, wanted = (sum(n * weights[site] for site, n in c.items()) for c in (calls, reference_calls(name)))
    assert told.compute_fraction == pytest.approx(done / wanted)
    assert image.isfinite().all()
    assert (image.shape, image.dtype) == (reference(name).shape, reference(name).dtype)


@pytest.mark.parametrize("name", CASES)
def test_uniform_reuses_on_every_pipeline(name: str) -> None:
    with attached(name, "uniform", interval=2) as pipe:
        image = render(pipe, name)
        told = report(pipe)
        if name in NOT_OBSERVED:
            assert torch.equal(image, reference(name))
            assert any("steps not observed" in note for note in told.notes)
            return
        assert 0 < told.compute_fraction < 1
        assert not told.notes
        assert not torch.equal(image, reference(name))
        render(pipe, name, seed=1)
        assert torch.equal(render(pipe, name), image)
        assert report(pipe).decisions.equal(told.decisions)


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("interval", [2, 3])
def test_uniform_equals_holding_the_residual_by_hand(name: str, interval: int) -> None:
    pipe = plain(name)
    module = pipe.components[CASES[name].denoisers[0]]
    with uniform_by_hand(module, interval, STEPS, PASSES[name]):
        expected = render(pipe, name)
    with attached(name, "uniform", interval=interval) as pipe:
        assert torch.equal(render(pipe, name), expected)
