"""What a plan says of some tokens: the work, and the bytes of keys and values."""

from __future__ import annotations

import pytest
import torch
from zoo.pipelines import CASES

from diffcache import accelerate, plan, report, restore

STEPS = 4


def mask(size: int) -> torch.Tensor:
    found = torch.zeros(size, size, dtype=torch.bool)
    found[: size // 2, : size // 2] = True
    return found


@pytest.mark.parametrize("name", ["FluxKontextPipeline"])  # WanPipeline of the zoo has two tokens: too few
@pytest.mark.parametrize("options", [{}, {"cache_dtype": "int8"}])
def test_bytes_and_work_are_as_planned(name, options):
    case = CASES[name]
    pipe = case.build()
    accelerate(pipe, "uniform", interval=1, rows=mask(16), **options)
    call = case.call(0, STEPS)
    foreseen = plan(pipe, **call)
    case.render(pipe, 0, STEPS)
    done = report(pipe)
    restore(pipe)
    assert "%" in done.summary()
    assert done.cache_bytes == pytest.approx(foreseen.cache_bytes, rel=0.01)
    assert done.compute_fraction == pytest.approx(foreseen.compute_fraction, rel=0.01)
    (tokens,) = [site for site in foreseen.sites if site.kind == "tokens"]
    assert 0 < tokens.cache_bytes < foreseen.cache_bytes
