"""`accelerate(pipe)` without a method reuses on every pipeline, says so, repeats itself, and can be taken off again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compatibility.levels import Cell, slow
from support.harness import NOT_OBSERVED, counted, reference, reference_calls, render
from zoo.pipelines import CASES

from diffcache import accelerate, report, restore
from diffcache.recipes.builtin import DEFAULT

GROUP = "Default method"
OFTEN = 26
"""So many pipelines are checked in every test run, the others in `make test-all`."""

LOOSE = 100.0
"""For the default method: the outputs of random weights change by more than those of trained ones."""

HALF_WAY = ("Img2Img", "Inpaint")
"""Their loops start later: a few ticks are too few to skip any."""

STRIDE = [name for i, name in enumerate(CASES) if i % 2 == 0][:OFTEN]


def test_at_least_25_classes_are_checked_in_every_run() -> None:
    assert len({type(CASES[name].build()) for name in STRIDE}) >= 25


@pytest.mark.parametrize("name", [name if name in STRIDE else slow(name) for name in CASES])
def test_default(name: str, cell: Cell) -> None:
    call = {"steps": 12} if any(kind in name for kind in HALF_WAY) else {}
    pipe: Any = CASES[name].build()
    own = type(pipe)
    assert accelerate(pipe, threshold=LOOSE) is pipe
    with counted(pipe, CASES[name].denoisers) as calls:
        image = render(pipe, name, **call)
    told = report(pipe)
    assert told.method == DEFAULT.name
    assert image.isfinite().all()
    assert (image.shape, image.dtype) == (
        reference(name, **call).shape,
        reference(name, **call).dtype,
    )
    if name in NOT_OBSERVED:
        assert torch.equal(image, reference(name, **call))
        assert any("steps not observed" in note for note in told.notes)
        verdict = "no: it steps copies of its noise scheduler only; computed in full, and told"
    else:
        assert calls.total() < reference_calls(name, **call).total()
        assert 0 < told.compute_fraction < 1
        verdict = "works"
    assert torch.equal(render(pipe, name, **call), image)
    assert type(restore(pipe)) is own
    assert torch.equal(render(pipe, name, **call), reference(name, **call))
    cell(GROUP, f"`{own.__name__}`", "whole model", verdict)
