"""The engine "trajectory": plans with the covariance of the pipeline's own velocities, beside evenly spread ticks."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import product

from diffcache.config import CacheConfig
from diffcache.host.guidance import guidance_in
from diffcache.profiling.calibrating.last_step import with_last_step
from diffcache.profiling.recording.covariance import Covariance, covariance_of
from diffcache.profiling.recording.response import response_of
from diffcache.profiling.recording.shares import ticks_for
from diffcache.profiling.recording.velocities import NotMeasurable
from diffcache.profiling.tuning.calibrated import MeanCacheEngine
from diffcache.profiling.tuning.engine import TuningEngine, engine
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.moments import angles_of
from diffcache.schedulers.schedule import Schedule
from diffcache.trajectory.known import Matrix
from diffcache.trajectory.transfer import OWN, UNIVERSAL, smoothed

logger = logging.getLogger("diffcache")

SLIGHTLY, SMOOTH = 2, 3
"""Strides by which a covariance is smoothed (`transfer.smoothed`) in the plans that are tried: it was measured on few samples."""

ANSWERING = 2
"""So many calls show the response; each takes one render more, beside its full run."""

ORDERS = (1, 2, 0)
"""Orders in which evenly spread ticks are extrapolated."""


COVARIANCES, RESPONSES, PREDICTIONS = 3, 2, 2
"""As measured and smoothed twice; the universal and the measured one; with the own and with the universal covariance."""


@engine("trajectory")
class TrajectoryEngine(TuningEngine):
    """What `accelerate(speedup=)` does, plans with the pipeline's own covariance and response, MeanCache's path, and evenly spread ticks.

    One call suffices; up to four are averaged.
    """

    proposals = 2 + len(ORDERS) + COVARIANCES * RESPONSES * PREDICTIONS + 1
    # 2: the universal plan and MeanCache's path; 1: the best one with its last step corrected

    @cached_property
    def measured(self) -> Covariance | None:
        """The covariance of velocities of full runs; None where it cannot be measured."""
        try:
            return covariance_of(self.task.pipe, self.task.calls)
        except NotMeasurable as error:
            logger.warning("diffcache: %s Plans are made with the universal covariance only.", error)
            return None

    @cached_property
    def covariances(self) -> list[Matrix]:
        """Of the velocities of full runs: as measured, half smoothed slightly, and smoothed; none where nothing is measured.

        Those of two denoisers are not smoothed: what one has returned tells nothing of the other.
        """
        found = self.measured
        if found is None:
            return []
        matrices = [found.matrix]
        if angles_of(found.moments) is not None and not found.handovers:
            guidance = replace(guidance_in(self.task.pipe, self.task.calls[0]), shown=found.amplification)
            kernel = TrajectoryConfig().prior.kernel.at(guidance.strength)
            slightly, smooth = (
                smoothed(kernel, found.matrix, found.moments, stride) for stride in (SLIGHTLY, SMOOTH)
            )
            matrices += [(found.matrix + slightly) / 2, smooth]
        return [tuple(map(tuple, matrix.tolist())) for matrix in matrices]

    @cached_property
    def response(self) -> Matrix | None:
        """The denoiser's response as measured; None where it cannot be measured."""
        found = response_of(self.task.pipe, self.task.calls[:ANSWERING])
        return None if found is None else tuple(map(tuple, found.factors.tolist()))

    @cached_property
    def meancache(self) -> MeanCacheEngine:
        """The published method that is best where few ticks are left."""
        return MeanCacheEngine(self.task)

    def propose(self, compute: float) -> Iterator[CacheConfig]:
        speedup = self.task.ticks / ticks_for(compute, self.task.ticks)
        yield TrajectoryConfig(speedup=speedup)
        yield from (EvenConfig(speedup=speedup, order=order) for order in ORDERS)
        if self.measured is None:
            return
        handovers = self.measured.handovers
        # What large errors showed does not hold for small ones in every denoiser, so the universal response is tried too.
        # No plan twice: `dict.fromkeys` drops the second of two equal ones, where the response could not be measured.
        plans = dict.fromkeys(product(self.covariances, (None, self.response), (OWN, UNIVERSAL)))
        for covariance, response, predicts_with in plans:
            yield TrajectoryConfig(
                speedup=speedup,
                covariance=covariance,
                response=response,
                handovers=handovers,
                amplification=self.measured.amplification,
                predicts_with=predicts_with,
            )
        if not handovers:  # the published method is for one denoiser
            yield from self.meancache.propose(compute)

    def corrected(self, schedule: Schedule) -> Schedule | None:
        return None if self.measured is None else with_last_step(self.task.pipe, self.task.calls, schedule)

    def fit_renders(self) -> int:
        count = len(self.task.calls)  # whose full runs and runs with the best proposal are drawn
        return 2 * count + min(count, ANSWERING) + self.meancache.fit_renders()
