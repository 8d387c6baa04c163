from __future__ import annotations

import pytest
import torch
from zoo.pipelines import CASES


@pytest.mark.parametrize("name", CASES)
def test_renders_finite_and_repeatable(name):
    case = CASES[name]
    pipe = case.build()
    image = case.render(pipe, seed=1, steps=4)
    assert image.isfinite().all()
    assert image.float().std() > 0
    assert torch.equal(image, case.render(pipe, seed=1, steps=4))
    assert not torch.equal(image, case.render(pipe, seed=2, steps=4))
