"""Skip-layer guidance: one guidance pass leaves out blocks, so that it lacks sites that the others have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from zoo.pipelines import CASES

from diffcache import accelerate, report

SD3 = CASES["StableDiffusion3Pipeline"]
CALL: dict[str, Any] = {
    "skip_guidance_layers": [1],
    "skip_layer_guidance_start": 0.0,
    "skip_layer_guidance_stop": 0.8,
}
STEPS = 10


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("taylorseer", {"interval": 2}),
        ("uniform", {"interval": 2, "site": "block"}),
        ("fbcache", {"threshold": 0.5}),
    ],
)
def test_a_run_is_replayed_in_all_its_passes(method: str, options: dict[str, Any]) -> None:
    pipe = accelerate(SD3.build(), method, **options)
    picture = SD3.render(pipe, 0, STEPS, **CALL)
    done = report(pipe)
    accelerate(pipe, done.to_schedule())
    assert torch.equal(SD3.render(pipe, 0, STEPS, **CALL), picture)
    assert report(pipe).compute_fraction == pytest.approx(done.compute_fraction)


def test_a_bound_leaves_out_sites_of_all_passes() -> None:
    pipe = accelerate(SD3.build(), "taylorseer", interval=2)
    SD3.render(pipe, 0, STEPS, **CALL)
    bound = report(pipe).cache_bytes // 10
    accelerate(pipe, "taylorseer", interval=2, max_cache_bytes=bound)
    assert SD3.render(pipe, 0, STEPS, **CALL).isfinite().all()
    assert report(pipe).cache_bytes <= bound


@pytest.mark.parametrize("options", [{}, {"speedup": 2}], ids=str)
@pytest.mark.parametrize("start", [0.0, 0.3])
def test_the_default_compares_errors_of_the_two_passes_in_one_batch(
    start: float, options: dict[str, Any]
) -> None:
    pipe = accelerate(SD3.build(), **options)
    given = SD3.call(0, 30)
    prompts = {name: torch.cat([given[name]] * 2) for name in given if name.endswith("_embeds")}
    call = {**CALL, **prompts, "skip_layer_guidance_start": start}
    assert SD3.render(pipe, 0, 30, **call).isfinite().all()
    assert report(pipe).compute_fraction < 1
