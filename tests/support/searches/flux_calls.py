"""A tiny Flux pipeline and calls of it, for recordings, calibrations and searches."""

from typing import Any

from zoo.pipelines import CASES

FLUX = CASES["FluxPipeline"]


def flux_calls(steps: int, count: int = 2) -> list[dict[str, Any]]:
    """Calls with the seeds 0, 1, ..."""
    return [FLUX.call(seed, steps) for seed in range(count)]
