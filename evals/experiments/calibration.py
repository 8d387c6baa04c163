"""What a calibration gives on held-out prompts, beside uniform reuse and fewer steps at the same compute."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.experiments.baselines import even
from diffcache.evals.harness.comparison import Comparison, Row
from diffcache.profiling.calibrating.corrections import Corrections
from diffcache.profiling.calibrating.dpcache import calibrate_dpcache
from diffcache.profiling.calibrating.ertacache import calibrate_ertacache
from diffcache.profiling.calibrating.magcache import calibrate_magcache
from diffcache.profiling.calibrating.meancache import calibrate_meancache
from diffcache.profiling.calibrating.profilingdit import calibrate_profilingdit
from diffcache.profiling.calibrating.teacache import calibrate_teacache
from diffcache.profiling.calibrating.threshold import calibrate_threshold
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.shares import check_share
from diffcache.profiling.tuning.tune import tune
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What to calibrate for.

    Attributes:
        compute: share of the full run's work.
        quality: PSNR in dB that `tune` keeps, instead of a share of the work; None: the share.
        background: share of blocks that ProfilingDiT caches.
        closed: ERTACache fits along the trajectory that reuse leads to.
        without: corrections that ERTACache does not try ("rectify", "respace", "hindsight").
    """

    compute: float
    quality: float | None = None
    background: float = 0.6
    closed: bool = False
    without: Sequence[str] = ()


def _ertacache(pipe: Any, calls: Sequence[Call], given: Calibration) -> Schedule:
    corrections = Corrections(closed=given.closed, **dict.fromkeys(given.without, False))
    return calibrate_ertacache(pipe, calls, given.compute, corrections)


def _profilingdit(pipe: Any, calls: Sequence[Call], given: Calibration) -> Schedule:
    return calibrate_profilingdit(pipe, calls, background=given.background)


def _tune(pipe: Any, calls: Sequence[Call], given: Calibration) -> Schedule:
    check_share(given.compute)
    speedup = 1 / given.compute if given.quality is None else None
    schedule: Schedule = tune(pipe, calls, quality=given.quality, speedup=speedup)
    return schedule


def _easycache(pipe: Any, calls: Sequence[Call], given: Calibration) -> CacheConfig:
    return calibrate_threshold(pipe, calls, EasyCacheConfig(), given.compute)


def _magcache(pipe: Any, calls: Sequence[Call], given: Calibration) -> CacheConfig:
    return calibrate_threshold(pipe, calls, calibrate_magcache(pipe, calls), given.compute)


def _teacache(pipe: Any, calls: Sequence[Call], given: Calibration) -> CacheConfig:
    return calibrate_threshold(pipe, calls, calibrate_teacache(pipe, calls), given.compute)


def _dpcache(pipe: Any, calls: Sequence[Call], given: Calibration) -> Schedule:
    return calibrate_dpcache(pipe, calls, given.compute)


def _meancache(pipe: Any, calls: Sequence[Call], given: Calibration) -> Schedule:
    return calibrate_meancache(pipe, calls, given.compute)


METHODS: Mapping[str, Callable[[Any, Sequence[Call], Calibration], Schedule | CacheConfig]] = {
    "ertacache": _ertacache,
    "profilingdit": _profilingdit,
    "dpcache": _dpcache,
    "meancache": _meancache,
    "magcache": _magcache,
    "teacache": _teacache,
    "easycache": _easycache,
    "tune": _tune,
}


def configs_of(method: str, made: Schedule | CacheConfig) -> dict[str, CacheConfig]:
    """What a method's calibration made, as configs by row name; ERTACache's corrections come one after another."""
    if not isinstance(made, Schedule):
        return {method: made}
    if method != "ertacache":
        return {method: ReplayConfig(schedule=made)}
    without = ReplayConfig(schedule=made, hindsight=False)
    return {
        "schedule alone": without.replace(rectify=False, respace=False),
        "+ rectification, if kept": without.replace(respace=False),
        "+ step adjustment, if kept": without,
        "+ hindsight, if kept": ReplayConfig(schedule=made),
    }


def compared(comparison: Comparison, configs: Mapping[str, CacheConfig], compute: float) -> list[Row]:
    """The configs; and as many evenly spaced ticks as the first of them computes, without and with hindsight, and fewer steps."""
    check_share(compute)
    rows = [comparison.method(name, config) for name, config in configs.items()]
    ticks = rows[0].ticks
    return [*rows, *even(comparison, ticks / comparison.steps), *comparison.fewer_steps(ticks)]
