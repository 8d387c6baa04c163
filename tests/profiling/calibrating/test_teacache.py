"""TeaCache's polynomial, fitted to a pipeline."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from searches.flux_calls import FLUX, flux_calls
from support.harness import reference

from diffcache.profiling.calibrating.teacache import calibrate_teacache
from diffcache.schedulers.errors import ConfigError

STEPS = 8


def test_teacaches_polynomial_is_fitted_to_the_pipeline() -> None:
    pipe = FLUX.build()
    config = calibrate_teacache(pipe, flux_calls(STEPS, 3))
    assert config.coefficients is not None
    assert len(config.coefficients) == 5
    assert np.isfinite(config.coefficients).all()
    with pytest.raises(ConfigError, match="calibrate on more steps or calls"):
        calibrate_teacache(pipe, [FLUX.call(0, 2)])
    assert torch.equal(FLUX.render(pipe, 0, STEPS), reference("FluxPipeline", 0, STEPS))
