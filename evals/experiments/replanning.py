"""What a run gains by moving computed ticks to where its errors are surprising."""

from collections.abc import Iterator
from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.experiments.trajectory import evens, figures, pictures
from diffcache.evals.harness.unseen import judged_on
from diffcache.recipes.budgeted import allowed
from diffcache.recipes.trajectory import TrajectoryConfig

SPEEDUPS = {50: (1.4, 1.8, 2.2, 2.6, 3.4), 28: (1.4, 1.7, 2.3)}
"""By number of steps. At none of these was a constant chosen."""


def compared(testbed: str, samples: int) -> Iterator[dict[str, Any]]:
    """For each number of steps and speed-up the PSNR in dB to the full run, by contender; all compute as many ticks."""
    for steps, speedups in SPEEDUPS.items():
        shown = pictures(testbed, steps, samples, "choose")
        for speedup in speedups:
            contenders: dict[str, CacheConfig] = {
                **evens(speedup),
                "fixed": TrajectoryConfig(speedup=speedup, replans=False),
                "moved": TrajectoryConfig(speedup=speedup),
            }
            with judged_on(testbed):
                found = {name: shown.method(config) for name, config in contenders.items()}
            yield {"steps": steps, "ticks": allowed(steps, speedup), **figures(found)}
