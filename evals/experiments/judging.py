"""How the default and `speedup=` do on testbeds on which nothing was fitted, against as many plain steps and evenly spaced ticks."""

from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.harness.cell import Cell
from diffcache.evals.testbeds import splits, zoo
from diffcache.recipes.builtin import DEFAULT
from diffcache.recipes.taylorseer import TaylorSeerConfig
from diffcache.recipes.trajectory import TrajectoryConfig

METHODS: dict[str, CacheConfig] = {
    "default": DEFAULT,
    "speedup=2": TrajectoryConfig(speedup=2),
    "speedup=3": TrajectoryConfig(speedup=3),
    "taylorseer, whole denoiser, every 2nd": TaylorSeerConfig(site="model", interval=2, order=1),
}


def judged(testbed: str, steps: int, samples: int) -> list[dict[str, Any]]:
    """One row for each method: its ticks, and PSNR in dB of it and of as many plain steps to the full run, medians."""
    seed = splits.PARTS["choose"].seed
    cell = Cell(zoo.load(testbed), lambda count: zoo.sample_call(testbed, seed, count, samples), steps)
    rows = []
    for name, config in METHODS.items():
        found = cell.method(config)
        ticks = len(found.report.computed_ticks)
        rows.append(
            {
                "method": name,
                "steps": steps,
                "ticks": ticks,
                "psnr": found.median,
                "fewer_steps": cell.fewer_steps(ticks).median,
            }
        )
        print(testbed, rows[-1], flush=True)
    return rows
