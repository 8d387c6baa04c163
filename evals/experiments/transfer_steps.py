"""A covariance and a response that were measured in one number of steps, used in others."""

from collections.abc import Iterator
from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.experiments.trajectory import evens, figures, pictures
from diffcache.evals.experiments.trajectory_prior import Setting, measured
from diffcache.evals.harness.unseen import judged_on
from diffcache.recipes.budgeted import allowed
from diffcache.recipes.trajectory import TrajectoryConfig

SPEEDUPS = (2.0, 3.0, 4.0)


def own(testbed: str, steps: int) -> TrajectoryConfig:
    """The method with what a testbed shows in so many steps."""
    found = measured(Setting(testbed, steps))
    return TrajectoryConfig(
        covariance=found.covariance.tolist(),
        response=found.response.factors.tolist(),
        angles=tuple(found.angles),
    )


def compared(testbed: str, measured_in: int, steps: int, samples: int) -> Iterator[dict[str, Any]]:
    """For each speed-up the PSNR in dB to the full run, by contender; all compute as many ticks.

    Args:
        testbed: its name.
        measured_in: so many steps, for the contender "transferred".
        steps: of the run; in as many the contender "own" is measured.
        samples: of which medians are given, and each one's PSNR.
    """
    shown = pictures(testbed, steps, samples, "choose")
    there, here = own(testbed, measured_in), own(testbed, steps)
    for speedup in SPEEDUPS:
        contenders: dict[str, CacheConfig] = {
            **evens(speedup),
            "prior": TrajectoryConfig(speedup=speedup),
            "transferred": there.replace(speedup=speedup),
            "own": here.replace(speedup=speedup),
        }
        with judged_on(testbed):
            found = {name: shown.method(config) for name, config in contenders.items()}
        yield {
            "measured_in": measured_in,
            "steps": steps,
            "ticks": allowed(steps, speedup),
            **figures(found),
        }
