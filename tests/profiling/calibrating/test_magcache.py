"""MagCache's ratios, recorded from a pipeline."""

from __future__ import annotations

from searches.flux_calls import FLUX, flux_calls
from zoo.pipelines import CASES

from diffcache.profiling.calibrating.magcache import calibrate_magcache

STEPS = 8


def test_magcache_gets_the_ratios_of_the_pipeline() -> None:
    config = calibrate_magcache(FLUX.build(), flux_calls(STEPS), threshold=0.1)
    assert config.ratios is not None
    assert len(config.ratios) == STEPS
    assert config.ratios[0] == 1
    assert all(0.2 < ratio < 5 for ratio in config.ratios)


def test_with_two_denoisers_magcache_gets_the_ratios_of_each() -> None:
    case = CASES["WanPipeline-two-experts"]
    ratios = calibrate_magcache(case.build(), [case.call(0, STEPS)]).ratios
    assert ratios is not None
    begins = [tick for tick, ratio in enumerate(ratios) if ratio == 1]
    assert begins == [0, 3]
