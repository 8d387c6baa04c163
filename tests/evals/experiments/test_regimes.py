"""The default is not below as many plain ticks, whatever the denoiser predicts."""

from __future__ import annotations

import pytest

from diffcache.evals.experiments.regimes import Regime, measure, regimes
from diffcache.evals.tables.regimes import BELOW, difference

HARD = [
    Regime("epsilon", "DPM++ 2M Karras", "7.5", 25),
    Regime("epsilon", "DDIM leading", "rescale", 25),
    Regime("sample", "DDIM clipped", "5", 12),
    Regime("v_prediction", "EDM Euler", "interval", 25),
    Regime("flow", "flux, down to sigma_min", "5", 12),
    Regime("flow", "wan, Heun", "5", 12),
]


@pytest.mark.slow
@pytest.mark.parametrize("regime", HARD, ids=str)
def test_the_default_is_not_below_as_many_plain_ticks(regime: Regime) -> None:
    assert regime in list(regimes())
    gained = difference(measure(regime, samples=4), "default")
    assert gained is None or gained > BELOW["default"]


def test_what_computes_everything_is_no_gain() -> None:
    cell = {"of": 10, "psnr": 40.0, "fewer_steps": 42.5}
    assert difference({"default": {"ticks": 10, **cell}}, "default") is None
    assert difference({"default": {"ticks": 9, **cell}}, "default") == -2.5
