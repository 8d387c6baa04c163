"""The threshold of an adaptive method, found for a share of compute."""

from __future__ import annotations

import pytest
from support.searches.flux_calls import FLUX, flux_calls

from diffcache import accelerate, report
from diffcache.profiling.calibrating.threshold import calibrate_threshold
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.errors import ConfigError

STEPS = 8


def test_a_threshold_is_found_for_a_share_of_compute() -> None:
    pipe = FLUX.build()
    config = calibrate_threshold(pipe, flux_calls(STEPS, 1), EasyCacheConfig(warmup_steps=2), 0.7)
    accelerate(pipe, config)
    FLUX.render(pipe, 0, STEPS)
    assert 0.4 < report(pipe).compute_fraction <= 0.7
    with pytest.raises(ConfigError, match="more than 10% at any threshold"):
        calibrate_threshold(pipe, flux_calls(STEPS, 1), EasyCacheConfig(warmup_steps=2), 0.1)
    with pytest.raises(ConfigError, match="no threshold"):
        calibrate_threshold(pipe, flux_calls(STEPS, 1), UniformConfig(), 0.5)
