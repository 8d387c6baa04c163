"""What hindsight gives on a testbed: the same methods without and with it, at as many computed ticks."""

from collections.abc import Mapping
from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.harness.equal_compute import Point, at_compute
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.evals.testbeds.repredicting import sd_predicting
from diffcache.profiling.recording.pictures import median_of
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.uniform import UniformConfig

STEPS = 50
METHODS: Mapping[str, CacheConfig] = {
    "every 2nd, held": UniformConfig(interval=2, basis="output"),
    "every 3rd, held": UniformConfig(interval=3, basis="output"),
    "every 2nd, order 1": UniformConfig(interval=2, order=1, basis="output", warmup_steps=3),
    "every 3rd, order 1": UniformConfig(interval=3, order=1, basis="output", warmup_steps=3),
    "EasyCache": EasyCacheConfig(threshold=0.1),
}
"""With hindsight EasyCache keeps its threshold. Without, it is interpolated to the ticks that it then computes."""


def measured(testbed: str, samples: int) -> dict[str, Any]:
    """Rows for a testbed; for sd also of the same network with its output converted to a prediction of the noise."""
    found = {"steps": STEPS, "rows": _compared(zoo.load(testbed), testbed, samples)}
    if testbed == "sd":
        found["rows_of_noise_prediction"] = _compared(sd_predicting("epsilon"), testbed, samples)
    return found


def _compared(pipe: Any, testbed: str, samples: int) -> list[dict[str, Any]]:
    """One row for each method: ticks, and PSNR in dB to the full run, medians over samples."""
    call = zoo.sample_call(testbed, 0, STEPS, samples)
    full, rows = render(pipe, call).pictures, []

    def point(config: CacheConfig) -> Point:
        rendered = render(pipe, call, config)
        return Point(len(rendered.run_report.computed_ticks), median_of(psnr(rendered.pictures, full)))

    for name, config in METHODS.items():
        ticks, with_it = point(config.replace(hindsight=True))
        if isinstance(config, EasyCacheConfig):
            without = at_compute(lambda threshold: point(EasyCacheConfig(threshold=threshold)), ticks)
        else:
            without = point(config.replace(hindsight=False)).value
        rows.append(
            {
                "method": name,
                "ticks": int(ticks),
                "psnr_without": round(without, 2),
                "psnr_with": round(with_it, 2),
            }
        )
        print(testbed, rows[-1], flush=True)
    return rows
