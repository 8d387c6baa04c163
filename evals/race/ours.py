"""Our own contenders in the race."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.harness.splits import calibration_calls
from diffcache.evals.race.contender import OURS, WARM_UP, Contender, Setup, spread
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.calling import accelerated, frozen
from diffcache.profiling.searching.tuning import Tuner
from diffcache.recipes.budget import BudgetConfig
from diffcache.recipes.builtin import DEFAULT
from diffcache.recipes.deepcache import DeepCacheConfig
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.fbcache import FBCacheConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.taylorseer import TaylorSeerConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.schedule import Schedule

INTERVALS = (12, 10, 8, 6, 5, 4, 3, 2)
TICKS = (8, 10, 12, 14, 17, 20, 25, 29, 33)
SPEEDUPS = (1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4)
DEFAULT_THRESHOLDS = (
    0.2, 0.14, 0.12, 0.1, 0.08, 0.07, 0.06, 0.055, 0.05, 0.04, 0.035, 0.03, 0.025, 0.02, 0.015, 0.0125, 0.01,
)  # fmt: skip
TUNED_SPEEDUPS = (1.5, 2, 3)
"""Only the race's own budgets: each is a search."""
CALIBRATION = 32
"""Samples that `tune` searches with."""

THRESHOLDS = (0.3, 0.2, 0.14, 0.1, 0.07, 0.05, 0.035, 0.025, 0.018)

Make = Callable[[Any], CacheConfig]


def _contender(name: str, knob: str, settings: tuple[float, ...], make: Make) -> Contender:
    return Contender(
        name, OURS, knob, settings, lambda pipe, setting, setup: accelerated(pipe, make(setting))
    )


def _evenly(name: str, **options: Any) -> Contender:
    """Schedules whose computed ticks are spread evenly; unlike whole intervals they meet every budget."""

    def attach(pipe: Any, setting: float, setup: Setup) -> AbstractContextManager[None]:
        schedule = _schedule(setup, int(setting), tuple(options.items()))
        return accelerated(pipe, ReplayConfig(schedule=schedule))

    return Contender(name, OURS, "ticks", TICKS, attach)


@lru_cache
def _schedule(setup: Setup, ticks: int, options: tuple[tuple[str, Any], ...]) -> Schedule:
    """A recorded run's schedule, with another table."""
    call = zoo.sample_call(setup.testbed, 1000, setup.steps, 1, "calibration")
    config = UniformConfig(interval=2, warmup_steps=WARM_UP, tail_steps=0, **dict(options))
    recorded = frozen(zoo.load(setup.testbed), call, config)
    row = "".join("#" if computed else "-" for computed in spread(ticks, setup.steps))
    return replace(recorded, table={site: dict.fromkeys(rows, row) for site, rows in recorded.table.items()})


def _tuned(pipe: Any, setting: float, setup: Setup) -> AbstractContextManager[None]:
    return accelerated(pipe, ReplayConfig(schedule=_searched(setup, setting)))


@lru_cache
def _searched(setup: Setup, speedup: float) -> Schedule:
    """What `tune` finds on calibration prompts and seeds."""
    calls = calibration_calls(setup.testbed, CALIBRATION, setup.steps)
    return Tuner(zoo.load(setup.testbed), calls).for_speedup(speedup)


CONTENDERS = (
    _contender("default", "threshold", DEFAULT_THRESHOLDS, lambda t: DEFAULT.replace(threshold=t)),
    _contender("speedup=", "speedup", SPEEDUPS, lambda s: BudgetConfig(speedup=s)),
    Contender("tuned, speedup=", OURS, "speedup", TUNED_SPEEDUPS, _tuned),
    _contender(
        "every nth, order 1",
        "interval",
        INTERVALS,
        lambda n: UniformConfig(interval=n, order=1, basis="output", warmup_steps=WARM_UP, watch_bound=0.5),
    ),
    _evenly("even schedule, hold", order=0),
    _evenly("even schedule, order 1", order=1, basis="output"),
    _evenly("even schedule, order 2", order=2, basis="output"),
    _evenly("even schedule, hold, hindsight", order=0, basis="output", hindsight=True),
    _contender("easycache", "threshold", THRESHOLDS, lambda t: EasyCacheConfig(threshold=t)),
    _contender(
        "easycache, hindsight",
        "threshold",
        THRESHOLDS,
        lambda t: EasyCacheConfig(threshold=t, hindsight=True),
    ),
    _contender("fbcache", "threshold", THRESHOLDS, lambda t: FBCacheConfig(threshold=t)),
    _contender(
        "taylorseer", "interval", INTERVALS, lambda n: TaylorSeerConfig(interval=n, order=1, warmup_steps=3)
    ),
    _contender("deepcache", "interval", INTERVALS, lambda n: DeepCacheConfig(interval=n)),
)
HOLDING = ("even schedule, hold", "easycache", "fbcache", "deepcache")
"""Those of them that reuse features as they are."""
