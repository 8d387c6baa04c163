"""MeanCache (arXiv 2601.19961): reuse average velocities, at ticks that keep the sample near its path."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
from torch import nn

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.prediction.average_velocity import AverageVelocity
from diffcache.prediction.predictors import Predictor
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.ticks import Ticks
from diffcache.store.streams import Basis

LENGTH = 50
"""Ticks of the published plans."""


class MeanCachePlan(NamedTuple):
    """The computed ticks; and after each of them how far the ticks up to the next one look back, 1 to hold."""

    ticks: tuple[int, ...]
    backs: tuple[int, ...]

    def in_run(self, length: int) -> "MeanCachePlan":
        """The plan for a run of another length than 50: it computes about the same share, as densely at each stage of the run."""
        count = max(round(len(self.ticks) * length / LENGTH), min(2, length))
        indices = np.linspace(0, len(self.ticks) - 1, count)
        stages = np.interp(indices, range(len(self.ticks)), self.ticks) / (LENGTH - 1)
        backs = {
            round(stage * (length - 1)): self.backs[int(i)] for i, stage in zip(indices, stages, strict=True)
        }
        return MeanCachePlan(tuple(backs), tuple(backs.values()))


QWEN_IMAGE = {
    25: MeanCachePlan((*range(17), 24, 32, 40, 43, 45, 47, 48, 49), (*[1] * 19, 5, 5, 5, 1, 1, 1)),
    17: MeanCachePlan((*range(9), 10, 17, 24, 31, 38, 45, 48, 49), (*[1] * 8, 2, 1, 1, 1, 1, 1, 4, 1, 1)),
    10: MeanCachePlan((0, 1, 3, 7, 14, 21, 28, 35, 42, 49), (1, 2, 1, 1, 1, 1, 1, 1, 4, 1)),
}
Z_IMAGE = {
    25: MeanCachePlan(
        (*range(7), 8, 10, 11, 12, 13, 15, 16, 17, 18, 20, 22, 29, 37, 42, 45, 47, 48, 49),
        (*[1] * 6, 2, 2, 1, 1, 1, 2, 1, 1, 1, 5, 5, 1, 1, 1, 5, 5, 1, 1, 1),
    ),
    20: MeanCachePlan(
        (0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 30, 38, 43, 46, 48, 49),
        (1, 1, 1, 1, 2, 2, 2, 2, 2, 5, 4, 5, 5, 1, 1, 1, 5, 2, 1, 1),
    ),
    17: MeanCachePlan(
        (0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 19, 27, 35, 43, 46, 48, 49),
        (1, 1, 1, 1, 2, 2, 2, 2, 2, 1, 1, 1, 1, 5, 2, 1, 1),
    ),
    15: MeanCachePlan(
        (0, 1, 2, 3, 5, 7, 10, 12, 17, 25, 33, 41, 45, 48, 49), (1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 5, 4, 1, 1)
    ),
    13: MeanCachePlan(
        (0, 1, 2, 3, 5, 9, 15, 22, 29, 36, 43, 47, 49), (1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 5, 2, 1)
    ),
}
PUBLISHED = {"QwenImageTransformer2DModel": QWEN_IMAGE, "ZImageTransformer2DModel": Z_IMAGE}
"""Plans by denoiser, and by the number of ticks that they compute."""


@method
@dataclass(frozen=True, kw_only=True)
class MeanCacheConfig(CacheConfig):
    """Where: the whole denoiser, its velocity. When: at the ticks of a plan. How: the average velocity over the step, from a slope.

    The rule is that of `diffcache.prediction.average_velocity`, for noise schedulers of flow matching that take Euler's steps. The authors apply it
    to the guided velocity, and here it is applied to each guidance pass; where these are combined linearly that is the same.
    `tune(pipe, prompts, speedup=3, engine="meancache")` finds a plan of your own by `diffcache.profiling.calibrating.meancache`.

    Attributes:
        budget: how many of 50 ticks a published plan computes: 25, 17 or 10 (Qwen-Image, and for models without a plan of their
            own), 25, 20, 17, 15 or 13 (Z-Image); 50 computes everything. Runs of other lengths compute about the same share, and runs of
            unknown length everything. Qwen-Image-2512, for which the authors have other plans, gets those of Qwen-Image.
        ticks: which are computed instead, by rising number.
        backs: after each of them, how many ticks the reused ones look back for the slope: 1 holds.
        warmup_steps, tail_steps: 0: the plans begin and end with computed ticks.
    """

    name: ClassVar[str] = "meancache"

    budget: int = 17
    ticks: tuple[int, ...] | None = None
    backs: tuple[int, ...] | None = None
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("budget", 1, whole=True)
        self._check_ticks("ticks")
        backs = self.backs if isinstance(self.backs, (list, tuple)) else ()
        if any(type(back) is not int or back < 1 for back in backs):
            raise ConfigError(
                f"meancache: backs must be a tuple of {len(backs)} whole numbers from 1, not {self.backs!r}."
            )
        self._check_numbers("backs", None if self.ticks is None else len(self.ticks))
        if (self.ticks is None) != (self.backs is None):
            raise ConfigError("meancache: ticks and backs go together: give both or neither.")

    def check(self, denoisers: Mapping[str, nn.Module]) -> None:
        if self.ticks is None:  # whether these fit is known in a run
            for denoiser in denoisers.values():
                self.plan(RunFacts(type(denoiser).__name__))

    @property
    def stored_basis(self) -> Basis:
        return "velocity"

    def warmup(self, run: RunFacts) -> int:
        return 0

    def plan(self, run: RunFacts) -> MeanCachePlan:
        """The plan for a run.

        Raises:
            ConfigError: there is none of this budget, or its ticks are for a longer run.
        """
        length = run.num_ticks or LENGTH
        if self.ticks is not None and self.backs is not None:
            if self.ticks[-1] >= length:
                raise ConfigError(
                    f"meancache: ticks go up to {self.ticks[-1]}, and this run has {length}: give ticks below {length}, or take more steps."
                )
            return MeanCachePlan(tuple(self.ticks), tuple(self.backs))
        if self.budget >= LENGTH:
            return MeanCachePlan(tuple(range(length)), (1,) * length)
        plans = PUBLISHED.get(run.denoiser_class, QWEN_IMAGE)
        if self.budget not in plans:
            known = ", ".join(map(str, plans))
            raise ConfigError(f"meancache: budget must be one of {known} or {LENGTH}, not {self.budget!r}.")
        return plans[self.budget].in_run(length)

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        return Interval(1) if run.num_ticks is None else Ticks(self.plan(run).ticks)

    def predictor_for(self, run: RunFacts) -> Predictor:
        length = run.num_ticks or LENGTH
        return AverageVelocity(levels_of(run.sigmas, length), backs_by_tick(self.plan(run), length))


def backs_by_tick(plan: MeanCachePlan, length: int) -> list[int]:
    """How far each tick of a run looks back; 0 for a computed one."""
    found = [0] * length
    for (tick, end), back in zip(pairwise([*plan.ticks, length]), plan.backs, strict=True):
        found[tick + 1 : end] = [back] * len(found[tick + 1 : end])
    return found


def levels_of(sigmas: Sequence[float] | None, length: int) -> list[float]:
    """The noise levels of a run's ticks, and 0 after them; where they are unknown or repeat, the ticks that are left."""
    levels = [*(sigmas or ()), 0.0]
    if len(levels) == length + 1 and all(a > b for a, b in pairwise(levels)):
        return levels
    return [float(tick) for tick in range(length, -1, -1)]
