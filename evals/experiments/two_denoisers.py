"""The method `trajectory` on two denoisers that follow one another, as in Wan 2.2: the wan testbed with its denoiser twice."""

import copy
from collections.abc import Iterator
from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.experiments.trajectory_prior import SAMPLES
from diffcache.evals.harness.cell import Cell
from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.testbeds import splits, zoo
from diffcache.profiling.tuning.engine import Task
from diffcache.profiling.tuning.planned import TrajectoryEngine
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.trajectory import TrajectoryConfig

BOUNDARY = 0.8
"""The second denoiser takes over below this share of the training's timesteps: after a third of the ticks."""

SPEEDUPS = (1.5, 2.0, 3.0, 4.0)


def pipeline(testbed: str) -> Any:
    """A Wan testbed whose denoiser is there twice. Features of one are not known to the other."""
    pipe = zoo.load(testbed)
    pipe.register_modules(transformer_2=copy.deepcopy(pipe.transformer))
    pipe.register_to_config(boundary_ratio=BOUNDARY)
    return pipe


def compared(testbed: str, steps: int, samples: int) -> Iterator[dict[str, Any]]:
    """For each speed-up the PSNR in dB to the full run, by contender. "own" is measured on other prompts and seeds."""
    pipe = pipeline(testbed)

    def cell(use: splits.Use, count: int) -> Cell:
        part = splits.PARTS[use]
        return Cell(
            pipe, lambda asked: zoo.sample_call(testbed, part.seed, asked, count, part.prompts), steps
        )

    shown = cell("choose", samples)
    engine = TrajectoryEngine(Task(pipe=pipe, calls=[cell("covariance", SAMPLES).call(steps)], ticks=steps))
    assert engine.measured is not None
    handovers = engine.measured.handovers
    for speedup in SPEEDUPS:
        contenders: dict[str, CacheConfig] = {
            "even": EvenConfig(speedup=speedup),
            "even, order 2": EvenConfig(speedup=speedup, order=2),
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
            **{name: one.median for name, one in found.items()},
        }
