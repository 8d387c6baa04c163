"""Engines that calibrate a published method for a share of the compute."""

from collections.abc import Iterator
from functools import cached_property

from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.profiling.calibrating import dpcache, meancache
from diffcache.profiling.calibrating.corrections import Corrections, with_hindsight
from diffcache.profiling.calibrating.ertacache import calibrate_ertacache, policy, static_schedule
from diffcache.profiling.calibrating.magcache import calibrate_magcache
from diffcache.profiling.calibrating.profilingdit import calibrate_profilingdit
from diffcache.profiling.calibrating.teacache import calibrate_teacache
from diffcache.profiling.calibrating.threshold import HALVINGS, calibrate_threshold
from diffcache.profiling.recording.record import recorded
from diffcache.profiling.recording.recording import Recording
from diffcache.profiling.recording.shares import SLACK, TooLittle, ticks_for
from diffcache.profiling.tuning.engine import TuningEngine, engine
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.schedule import Schedule

INTERVALS = (2, 3, 4, 6, 8, 12)
"""Distances of ProfilingDiT's first computed ticks that are tried, until one meets the share. Our choice."""


@engine("ertacache")
class ERTACacheEngine(TuningEngine):
    """ERTACache's ticks, held; these with its corrections; and these with hindsight."""

    proposals = 3

    @cached_property
    def recording(self) -> Recording:
        return recorded(self.task.pipe, self.task.calls)

    def propose(self, compute: float) -> Iterator[CacheConfig]:
        plain = static_schedule(self.recording, policy(self.recording, compute))
        yield ReplayConfig(schedule=plain)
        yield ReplayConfig(schedule=with_hindsight(plain))
        yield ReplayConfig(schedule=self._corrected(compute))

    def _corrected(self, compute: float) -> Schedule:
        """With its corrections; without other noise levels where the noise scheduler cannot take them."""
        try:
            return self._with(compute, Corrections(hindsight=False))
        except ScheduleError:
            return self._with(compute, Corrections(hindsight=False, respace=False))

    def _with(self, compute: float, corrections: Corrections) -> Schedule:
        return calibrate_ertacache(self.task.pipe, self.task.calls, compute, corrections)

    def fit_renders(self) -> int:
        return 8 * len(self.task.calls)  # a recording, full runs, the two fits, and up to four candidates


@engine("profilingdit")
class ProfilingDiTEngine(TuningEngine):
    """ProfilingDiT's blocks, at the smallest interval that meets the share."""

    def propose(self, compute: float) -> Iterator[CacheConfig]:
        least = 1.0
        for interval in INTERVALS:
            schedule = calibrate_profilingdit(self.task.pipe, self.task.calls, interval=interval)
            least = min(least, schedule.measured["compute_fraction"])
            if schedule.measured["compute_fraction"] <= compute + SLACK:
                yield ReplayConfig(schedule=schedule)
                return
        raise TooLittle(
            f"profilingdit computes at least {least:.0%} here: ask for less, or choose another engine.", least
        )

    def fit_renders(self) -> int:
        return 2 * len(self.task.calls) + len(INTERVALS)


@engine("dpcache")
class DPCacheEngine(TuningEngine):
    """DPCache's path with the most ticks that the share pays for; what lies outside the stack is computed at every tick."""

    @cached_property
    def costs(self) -> Tensor:
        return dpcache.measured_costs(self.task.pipe, self.task.calls)

    def propose(self, compute: float) -> Iterator[CacheConfig]:
        for count in range(ticks_for(compute, self.task.ticks), 0, -1):
            share = count / self.task.ticks
            schedule = dpcache.schedule_on(self.task.pipe, self.task.calls[0], self.costs, share)
            if schedule.measured["compute_fraction"] <= compute + SLACK:
                yield ReplayConfig(schedule=schedule)
                return

    def fit_renders(self) -> int:
        return len(self.task.calls) + 2


@engine("meancache")
class MeanCacheEngine(TuningEngine):
    """MeanCache's path for the share."""

    @cached_property
    def errors(self) -> Tensor:
        return meancache.measured_errors(self.task.pipe, self.task.calls)

    def propose(self, compute: float) -> Iterator[CacheConfig]:
        pipe, calls = self.task.pipe, self.task.calls
        yield ReplayConfig(schedule=meancache.schedule_on(pipe, calls[0], self.errors, compute))

    def fit_renders(self) -> int:
        return len(self.task.calls) + 1


@engine("magcache")
class MagCacheEngine(TuningEngine):
    """MagCache with the pipeline's own ratios, at the threshold that meets the share."""

    adaptive = True

    @cached_property
    def calibrated(self) -> CacheConfig:
        return calibrate_magcache(self.task.pipe, self.task.calls)

    def propose(self, compute: float) -> Iterator[CacheConfig]:
        yield calibrate_threshold(self.task.pipe, self.task.calls, self.calibrated, compute)

    def fit_renders(self) -> int:
        return (1 + HALVINGS) * len(self.task.calls)


@engine("teacache")
class TeaCacheEngine(MagCacheEngine):
    """TeaCache with a polynomial fitted to the pipeline, at the threshold that meets the share."""

    @cached_property
    def calibrated(self) -> CacheConfig:
        return calibrate_teacache(self.task.pipe, self.task.calls)
