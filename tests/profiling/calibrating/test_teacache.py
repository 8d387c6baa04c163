"""TeaCache's polynomial, fitted to a pipeline."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support.harness import reference
from support.searches.flux_calls import FLUX, flux_calls
from torch import Tensor

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


def test_the_polynomial_is_fitted_to_the_change_of_the_picture_and_not_of_the_text() -> None:
    pipe, signals, outputs = FLUX.build(), list[Tensor](), list[Tensor]()

    def note_signal(module: Any, args: Any, output: Any) -> None:
        signals.append(output[0].double())

    def note_output(module: Any, args: Any, output: Any) -> None:
        outputs.append(output[1].double())  # a block of Flux returns the text first

    pipe.transformer.transformer_blocks[0].norm1.register_forward_hook(note_signal)
    pipe.transformer.single_transformer_blocks[-1].register_forward_hook(note_output)
    FLUX.render(pipe, 0, STEPS)
    x, y = (
        [float((now - before).abs().mean() / before.abs().mean()) for before, now in pairwise(values)]
        for values in (signals, outputs)
    )
    expected = np.polyfit(
        x[:-1], y[:-1], 4
    )  # the last tick is computed in any case, and nothing is measured there
    found = calibrate_teacache(FLUX.build(), [FLUX.call(0, STEPS)]).coefficients
    assert found is not None
    np.testing.assert_allclose(np.polyval(found, x[:-1]), np.polyval(expected, x[:-1]), rtol=1e-3)
