"""What it costs to store the cache in fewer bits: bytes and PSNR to the full run for each format, at half of the compute."""

from typing import Any

import torch

from diffcache.evals.harness.rendering import Rendered, render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.pictures import median_of
from diffcache.recipes.taylorseer import TaylorSeerConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.store.formats import DTYPES

STEPS = 50
ORDER_1 = UniformConfig(interval=2, order=1, basis="output", warmup_steps=3, watch_bound=0.5)
METHODS = {
    "order 1, watched": ORDER_1,
    "hold": UniformConfig(interval=2, predictor="hold", warmup_steps=3),
    "order 2": ORDER_1.replace(order=2),
    "taylorseer": TaylorSeerConfig(interval=2, order=1, warmup_steps=3),
}


def measured(testbed: str, samples: int) -> dict[str, Any]:
    """A row for each method and format; "lost" and "most_lost" are dB below the format in which features are computed."""
    torch.manual_seed(0)
    pipe, call = zoo.load(testbed), zoo.sample_call(testbed, 0, STEPS, samples)
    full = render(pipe, call).pictures
    rows = []
    for method, config in METHODS.items():
        as_computed: Rendered | None = None
        for dtype in (None, *DTYPES):
            rendered = render(pipe, call, config.replace(cache_dtype=dtype))
            as_computed = as_computed or rendered
            fidelity, unrounded = psnr(rendered.pictures, full), psnr(as_computed.pictures, full)
            row = {
                "method": method,
                "format": dtype or "as computed",
                "compute": round(rendered.run_report.compute_fraction, 4),
                "cache_bytes": rendered.run_report.cache_bytes,
                "psnr": round(median_of(fidelity), 3),
                "lost": round(median_of(unrounded - fidelity), 3),
                "most_lost": round(float((unrounded - fidelity).max()), 3),
            }
            print(testbed, row, flush=True)
            rows.append(row)
    return {"steps": STEPS, "rows": rows}
