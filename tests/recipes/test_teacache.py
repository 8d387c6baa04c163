"""TeaCache measures what its authors measure, and reuses the blocks that they reuse."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from zoo.pipelines import CASES

from diffcache import accelerate, report
from diffcache.config import RunFacts
from diffcache.engine.observers import Observer, observed
from diffcache.recipes.teacache import PUBLISHED, TeaCacheConfig
from diffcache.schedulers.steps import Step

STEPS = 7

PLACES = [
    ("FluxPipeline", "transformer_blocks.0.norm1", "stack", {}),
    ("HunyuanVideoPipeline", "transformer_blocks.0.norm1", "stack", {}),
    ("MochiPipeline", "transformer_blocks.0.norm1", "stack", {}),
    ("Lumina2Pipeline", "layers.0.norm1", "layers.0..layers.3", {"guidance_scale": 1.0}),
    ("CogVideoXPipeline", "time_embedding", "stack", {}),
]
"""Pipelines, the module whose output the authors' scripts compare from tick to tick, and what they reuse."""


class Measured(Observer):
    """The signals of a run."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def measured(self, denoiser: str, step: Step, signal: Sequence[float]) -> None:
        self.values += signal


@pytest.mark.parametrize(("name", "module", "site", "options"), PLACES)
def test_the_signal_is_that_of_the_authors(
    name: str, module: str, site: str, options: dict[str, Any]
) -> None:
    case, outputs = CASES[name], list[Tensor]()
    plain = case.build()

    def note(module: Any, args: Any, output: Any) -> None:
        outputs.append((output if isinstance(output, Tensor) else output[0]).detach().double())

    plain.transformer.get_submodule(module).register_forward_hook(note)
    case.render(plain, 0, STEPS, **options)
    changes = [float((now - before).abs().mean() / before.abs().mean()) for before, now in pairwise(outputs)]
    expected = np.polyval(PUBLISHED[type(plain.transformer).__name__].coefficients, changes[: STEPS - 2])
    pipe, seen = accelerate(case.build(), TeaCacheConfig(threshold=0)), Measured()
    with observed(seen):
        case.render(pipe, 0, STEPS, **options)
    assert len(outputs) == STEPS
    np.testing.assert_allclose(seen.values, expected, rtol=1e-3)
    assert list(report(pipe).to_schedule().table) == [f"transformer.{site}"]


def test_of_lumina2_with_one_layer_that_is_reused() -> None:
    facts = RunFacts("Lumina2Transformer2DModel", blocks={"noise_refiner": 2, "layers": 1})
    assert TeaCacheConfig().sites(facts) == ("layers.0",)


def test_teacache_reuses_lumina2_as_the_authors_rule_says() -> None:
    """E grows at each tick by the polynomial, where the refiners before the layers run at all ticks."""
    case = CASES["Lumina2Pipeline"]
    pipe = accelerate(case.build(), "teacache", threshold=2.0)
    with torch.no_grad():
        case.render(pipe, 4, 12, guidance_scale=1.0)
    assert report(pipe).computed_ticks == [0, 3, 6, 9, 11]
