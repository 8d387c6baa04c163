"""How the default and `speedup=` do on testbeds on which nothing was fitted, against as many plain steps and evenly spaced ticks."""

from typing import Any

from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.recipes.budget import BudgetConfig
from diffcache.recipes.builtin import DEFAULT
from diffcache.recipes.taylorseer import TaylorSeerConfig

METHODS: dict[str, CacheConfig] = {
    "default": DEFAULT,
    "speedup=2": BudgetConfig(speedup=2),
    "speedup=3": BudgetConfig(speedup=3),
    "taylorseer, whole denoiser, every 2nd": TaylorSeerConfig(site="model", interval=2, order=1),
}


def judged(testbed: str, steps: int, samples: int, seed: int = 0) -> list[dict[str, Any]]:
    """One row for each method: its ticks, and PSNR in dB of it and of as many plain steps to the full run, medians."""
    pipe = zoo.load(testbed)

    def rendered(count: int) -> Tensor:
        return render(pipe, zoo.sample_call(testbed, seed, count, samples)).pictures

    full, rows = rendered(steps), []
    for name, config in METHODS.items():
        run = render(pipe, zoo.sample_call(testbed, seed, steps, samples), config)
        ticks = len(run.run_report.computed_ticks)
        rows.append(
            {
                "method": name,
                "steps": steps,
                "ticks": ticks,
                "psnr": round(float(psnr(run.pictures, full).median()), 1),
                "fewer_steps": round(float(psnr(rendered(ticks), full).median()), 1),
            }
        )
        print(testbed, rows[-1], flush=True)
    return rows
