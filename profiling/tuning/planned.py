"""The engine "trajectory": plans with the covariance of the pipeline's own velocities, beside evenly spread ticks."""

from collections.abc import Iterator
from functools import cached_property

from diffcache.config import CacheConfig
from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import denoisers_of
from diffcache.profiling.recording.covariance import covariance_of
from diffcache.profiling.recording.loops import target_of
from diffcache.profiling.recording.response import response_of
from diffcache.profiling.recording.shares import ticks_for
from diffcache.profiling.tuning.calibrated import MeanCacheEngine
from diffcache.profiling.tuning.engine import Engine, engine
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.trajectory import Covariance, Factors, TrajectoryConfig

CAUTIONS = (1.0, 0.7, 1.4)
"""By what a measured response is multiplied in the plans that are tried: it was measured on few samples."""

ANSWERING = 2
"""So many calls show the response; each takes two renders."""

ORDERS = (1, 2, 0)
"""Orders in which evenly spread ticks are extrapolated."""


@engine("trajectory")
class TrajectoryEngine(Engine):
    """What `accelerate(speedup=)` does, plans with the pipeline's own covariance and response, MeanCache's path, and evenly spread ticks.

    One call suffices; up to four are averaged.
    """

    proposals = 2 + len(CAUTIONS) + len(ORDERS)

    @cached_property
    def covariance(self) -> Covariance | None:
        """Of the velocities of full runs; None for a pipeline of several denoisers."""
        if len(each_uncompiled(denoisers_of(target_of(self.task.pipe)))) > 1:
            return None
        measured = covariance_of(self.task.pipe, self.task.calls).matrix.tolist()
        return tuple(map(tuple, measured))

    @cached_property
    def responses(self) -> list[Factors | None]:
        """The denoiser's response as measured, and larger and smaller; only the universal one where it cannot be measured."""
        found = response_of(self.task.pipe, self.task.calls[:ANSWERING])
        if found is None:
            return [None]
        return [tuple(map(tuple, (caution * found.factors).tolist())) for caution in CAUTIONS]

    @cached_property
    def meancache(self) -> MeanCacheEngine:
        """The published method that is best where few ticks are left."""
        return MeanCacheEngine(self.task)

    def propose(self, compute: float) -> Iterator[CacheConfig]:
        speedup = self.task.ticks / ticks_for(compute, self.task.ticks)
        yield TrajectoryConfig(speedup=speedup)
        yield from (EvenConfig(speedup=speedup, order=order) for order in ORDERS)
        if self.covariance is not None:
            for response in self.responses:
                yield TrajectoryConfig(speedup=speedup, covariance=self.covariance, response=response)
            yield from self.meancache.propose(compute)

    def fit_renders(self) -> int:
        return len(self.task.calls) + 2 * min(len(self.task.calls), ANSWERING) + self.meancache.fit_renders()
