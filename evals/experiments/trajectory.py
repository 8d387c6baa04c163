"""The method `trajectory` on each testbed: with a prior that has never seen it, and with its own covariance."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.evals.experiments.regimes import CALIBRATION, HELD_OUT
from diffcache.evals.experiments.trajectory_prior import SAMPLES
from diffcache.evals.harness.rendering import render
from diffcache.evals.harness.results import read_result, result_path
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.covariance import covariance_of
from diffcache.profiling.searching.tuning import RESPONSES
from diffcache.recipes.budget import BudgetConfig, allowed
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.trajectory.kernel import Kernel

SPEEDUPS = (1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class LeftOutConfig(TrajectoryConfig):
    """`trajectory` with the prior that was fitted without one testbed.

    Attributes:
        testbed: its name.
    """

    testbed: str = ""

    @cached_property
    def kernel(self) -> Kernel:
        result = read_result(result_path("trajectory_prior", self.testbed))
        return Kernel.from_dict(result["kernel"])


class Pictures:
    """What a testbed draws of some prompts, and how near a method comes to its full run.

    Args:
        testbed: its name.
        steps: of the full run.
        samples: how many.
        split: of the prompts; seeds of the two splits differ as well.
    """

    def __init__(self, testbed: str, steps: int, samples: int, split: zoo.PromptSplit) -> None:
        self.pipe = zoo.load(testbed)
        self._asked = testbed, CALIBRATION if split == "calibration" else HELD_OUT, samples, split
        self.full = render(self.pipe, self.call(steps)).pictures
        self.steps = steps

    def call(self, steps: int) -> dict[str, Any]:
        """The pipeline's arguments."""
        testbed, seed, samples, split = self._asked
        return zoo.sample_call(testbed, seed, steps, samples, split=split)

    def median(self, config: CacheConfig | None, steps: int | None = None) -> float:
        """Median PSNR over the samples to the full run, in dB, of a method or of fewer plain steps."""
        return round(float(self._psnr(config, steps).median()), 1)

    def mean(self, config: CacheConfig) -> float:
        """Mean PSNR over the samples to the full run, in dB: by this `tune` chooses."""
        return float(self._psnr(config).mean())

    def _psnr(self, config: CacheConfig | None, steps: int | None = None) -> Tensor:
        return psnr(render(self.pipe, self.call(steps or self.steps), config).pictures, self.full)


def compared(testbed: str, steps: int, samples: int) -> Iterator[dict[str, Any]]:
    """For each speed-up the median PSNR in dB to the full run, by contender; all compute as many ticks.

    "tuned" is the contender that is best on other prompts and seeds, as `diffcache.tune` chooses it.
    """
    shown = Pictures(testbed, steps, samples, "heldout")
    tried = Pictures(testbed, steps, SAMPLES, "calibration")
    covariance = covariance_of(tried.pipe, [tried.call(steps)]).matrix.tolist()
    for speedup in SPEEDUPS:
        own = {
            f"own covariance, response {response:g}": TrajectoryConfig(
                speedup=speedup, covariance=covariance, response=response
            )
            for response in RESPONSES
        }
        contenders: dict[str, CacheConfig] = {
            "even": BudgetConfig(speedup=speedup),
            "even, order 2": BudgetConfig(speedup=speedup, order=2),
            "prior": LeftOutConfig(speedup=speedup, testbed=testbed),
            **own,
        }
        tuned = max(contenders.values(), key=tried.mean)
        found = {name: shown.median(config) for name, config in contenders.items()}
        ticks = allowed(steps, speedup)
        yield {
            "steps": steps,
            "ticks": ticks,
            **found,
            "tuned": next(found[name] for name, config in contenders.items() if config is tuned),
            "fewer_steps": shown.median(None, ticks),
        }
