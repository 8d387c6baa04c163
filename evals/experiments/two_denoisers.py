"""The method `trajectory` on two denoisers that follow one another, as in Wan 2.2: the wan testbed with its denoiser twice."""

import copy
from collections.abc import Iterator
from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.experiments.trajectory import SPEEDUPS, engine_on, evens, figures, pictures
from diffcache.evals.experiments.trajectory_prior import SAMPLES
from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.testbeds import zoo
from diffcache.recipes.trajectory import TrajectoryConfig

BOUNDARY = 0.8
"""The second denoiser takes over below this share of the training's timesteps: after a third of the ticks."""


def pipeline(testbed: str) -> Any:
    """A Wan testbed whose denoiser is there twice. Features of one are not known to the other."""
    pipe = zoo.load(testbed)
    pipe.register_modules(transformer_2=copy.deepcopy(pipe.transformer))
    pipe.register_to_config(boundary_ratio=BOUNDARY)
    return pipe


def compared(testbed: str, steps: int, samples: int) -> Iterator[dict[str, Any]]:
    """For each speed-up the PSNR in dB to the full run, by contender. "own" is measured on other prompts and seeds."""
    pipe = pipeline(testbed)
    shown = pictures(testbed, steps, samples, "choose", pipe=pipe)
    fitted = pictures(testbed, steps, SAMPLES, "covariance", pipe=pipe)
    engine = engine_on(fitted)
    assert engine.measured is not None
    handovers = engine.measured.handovers
    for speedup in SPEEDUPS:
        contenders: dict[str, CacheConfig] = {
            **evens(speedup),
            "prior": TrajectoryConfig(speedup=speedup),
            "own": TrajectoryConfig(
                speedup=speedup,
                covariance=engine.covariances[0],
                response=engine.response,
                handovers=handovers,
            ),
        }
        with judged_on(testbed):
            found = {name: shown.method(config) for name, config in contenders.items()}
        ticks = max(len(one.report.computed_ticks) for one in found.values())
        found["fewer_steps"] = shown.fewer_steps(ticks)
        yield {
            "steps": steps,
            "handovers": list(handovers),
            "ticks": ticks,
            **figures(found),
        }
