"""Trajectory: the outputs of a run as one Gaussian process, which predicts, corrects, and says where to compute. Our own method."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.prediction.hindsight import LARGEST_RATIO
from diffcache.prediction.predictors import Conditional, Polynomial, Predictor
from diffcache.recipes.budget import allowed, choosable
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.guards import Guards
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.ticks import Ticks, spread
from diffcache.store.streams import Basis
from diffcache.trajectory.kernel import Kernel, universal
from diffcache.trajectory.plan import TrajectoryPlan, planned
from diffcache.trajectory.process import Process, positions_of, prior_process
from diffcache.trajectory.result_error import ResultError

Covariance = tuple[tuple[float, ...], ...]


@method
@dataclass(frozen=True, kw_only=True)
class TrajectoryConfig(CacheConfig):
    """Where: the whole denoiser. When: at the ticks that make the expected error of the result small. How: the conditional mean.

    The velocities of a run are taken for a Gaussian process over its ticks (`diffcache.trajectory`). Its covariance is a
    universal one, or was measured on full runs of the pipeline (`diffcache.tune`). One formula predicts reused ticks, corrects
    them at the next computed one, and says which ticks to compute. Where the length of a run is unknown, ticks are computed
    at even distances and a straight line predicts the others.

    Attributes:
        speedup: ticks of the run over computed ticks, at least; 1 computes everything.
        covariance: E<v_i, v_j> of the velocities at each two ticks of a run, per element, [ticks][ticks]; None: the universal one.
        response: how large the error of a computed output is, over that of the sample which the denoiser was given. The larger
            it is, the more carefully reused ticks are predicted; guidance makes it larger.
        warmup_steps: None: 1. These ticks are computed even if the speed-up is then missed.
    """

    name: ClassVar[str] = "trajectory"

    speedup: float = 2.0
    covariance: Covariance | None = None
    response: float = 4.0
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("speedup", 1)
        self._check("response", 0)
        if self.covariance is not None:
            rows = tuple(map(tuple, self.covariance))
            if not rows or any(len(row) != len(rows) for row in rows) or not np.isfinite(rows).all():
                raise ConfigError(
                    "trajectory: covariance must be a square of finite numbers, [ticks][ticks]."
                )
            object.__setattr__(self, "covariance", rows)

    @property
    def stored_basis(self) -> Basis:
        return "velocity"

    @property
    def own_hindsight(self) -> bool:
        return True

    @property
    def kernel(self) -> Kernel:
        """What is known of a pipeline whose covariance has not been measured."""
        return universal()

    def most_ticks(self, run: RunFacts) -> int | None:
        return None if run.num_ticks is None else allowed(run.num_ticks, self.speedup)

    def warmup(self, run: RunFacts) -> int:
        return 1

    def guards(self, run: RunFacts) -> Guards:
        """A tail is computed as far as the budget goes."""
        guards, most = super().guards(run), self.most_ticks(run)
        if most is None:
            return guards
        left = max(self._count(run) - guards.warmup_steps, 0)
        return replace(guards, tail_steps=min(guards.tail_steps, left))

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        if run.num_ticks is None:
            return Interval(math.ceil(self.speedup))
        return Ticks(self.plan(run).ticks)

    def predictor_for(self, run: RunFacts) -> Predictor:
        if run.num_ticks is None:
            return Polynomial(1, "angle")
        plan = self.plan(run)
        return Conditional(self._process(_moments(run)).believed(plan.trust.roughness), plan.trust.noise)

    def plan(self, run: RunFacts) -> TrajectoryPlan:
        """What is computed in a run of known length.

        Raises:
            ScheduleError: the covariance was measured on a run of another length.
        """
        guards = self.guards(run)
        return _plan(self, _moments(run), run.influence, self._count(run), guards)

    def _count(self, run: RunFacts) -> int:
        """How many computed ticks can be chosen."""
        return choosable(allowed(run.num_ticks or 1, self.speedup), run)

    def _process(self, moments: Sequence[Moment]) -> Process:
        if self.covariance is None:
            return prior_process(self.kernel, moments)
        if len(self.covariance) != len(moments):
            raise ScheduleError(
                f"trajectory: the covariance was measured in {len(self.covariance)} ticks and this run has {len(moments)}: "
                "measure it with as many steps."
            )
        return Process(np.array(self.covariance), positions_of(self.kernel, moments))


def _moments(run: RunFacts) -> tuple[Moment, ...]:
    """Of a run's ticks, of which perhaps nothing but their number is known."""
    return run.moments or tuple(map(Moment, range(run.num_ticks or 0)))


@lru_cache(maxsize=64)
def _plan(
    config: TrajectoryConfig,
    moments: tuple[Moment, ...],
    influence: tuple[float, ...] | None,
    count: int,
    guards: Guards,
) -> TrajectoryPlan:
    """The plan of a run; runs that are alike share it."""
    ticks, tail = len(moments), guards.tail_steps
    begin = min(guards.warmup_steps, ticks)
    forced = {*range(begin), *range(ticks - tail, ticks)}
    chosen = max(count, len(forced))
    even = spread(ticks - tail, chosen - tail, begin, compute_last=tail == 0)
    start = [*even, *range(ticks - tail, ticks)]
    # Where the noise scheduler adds noise or clips, nothing is corrected and all ticks count alike.
    ratio = LARGEST_RATIO if config.hindsight and influence is not None else 0.0
    weighed = np.array(influence or [-1 / ticks] * ticks)
    process = config._process(moments)
    return planned(lambda trust: ResultError(process, weighed, ratio, trust, config.response), start, forced)
