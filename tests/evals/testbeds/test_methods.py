"""The methods on trained testbeds: the rarer they compute, the further they are from the full run."""

from itertools import pairwise
from typing import Any

import pytest

from diffcache import methods
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo

STATIC: list[tuple[str, str, dict[str, Any]]] = [
    ("flux", "uniform", {}),
    ("flux", "taylorseer", {"order": 1}),
    ("dit", "fora", {}),
    ("dit", "profilingdit", {}),
    ("sd", "deepcache", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("testbed", "method", "options"), STATIC)
def test_psnr_falls_with_the_interval(testbed: str, method: str, options: dict[str, Any]) -> None:
    pipe, call = zoo.load(testbed), zoo.sample_call(testbed, 0, 24, 2)
    full = render(pipe, call).pictures
    quality = []
    for interval in (1, 2, 4, 8):
        config = methods()[method](interval=interval, **options)
        quality.append(float(psnr(render(pipe, call, config).pictures, full).median()))
    assert quality[0] == 100  # where psnr ends: the same pictures
    assert all(better > worse for better, worse in pairwise(quality)), quality
