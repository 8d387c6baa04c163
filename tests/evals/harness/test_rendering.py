"""Rendering: it repeats, and leaves the pipeline plain."""

import pytest
import torch

from diffcache import EasyCacheConfig
from diffcache.evals.harness.rendering import render
from diffcache.evals.testbeds import splits, zoo


@pytest.mark.parametrize("name", splits.FITTING)
def test_rendering_repeats_and_leaves_the_pipeline_plain(name: str) -> None:
    pipe, call = zoo.load(name), zoo.sample_call(name, 0, 4, 2)
    classes = {key: type(part) for key, part in pipe.components.items()}
    first = render(pipe, call)
    exact = render(pipe, call, EasyCacheConfig(threshold=0.0))
    assert torch.equal(first.pictures, exact.pictures)
    assert first.pictures.shape[-3] == 3
    assert first.seconds > 0
    assert exact.report is not None
    assert exact.report.num_ticks == 4
    assert {key: type(part) for key, part in pipe.components.items()} == classes
    assert "step" not in vars(pipe.scheduler)
