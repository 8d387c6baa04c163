"""Our own contenders in the race, attached as a user types them, and the plain pipeline with fewer steps."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

from diffcache.api import accelerate, restore
from diffcache.config import CacheConfig
from diffcache.evals.race.budgets import budgets_for
from diffcache.evals.race.contender import (
    OURS,
    Contender,
    Options,
    RaceSetup,
    Sweep,
    typed,
    whole_ticks,
)
from diffcache.evals.race.solvers import solvers
from diffcache.evals.testbeds import splits, zoo
from diffcache.profiling.tuning.engine import Task, TuningEngine
from diffcache.profiling.tuning.engines import ENGINES
from diffcache.profiling.tuning.parts import Parts
from diffcache.profiling.tuning.tuner import Tuner
from diffcache.recipes.meancache import QWEN_IMAGE

THRESHOLDS = (0.3, 0.15, 0.08, 0.05, 0.03, 0.02, 0.01, 0.005)
CHANGES = (0.4, 0.25, 0.16, 0.1, 0.07, 0.045, 0.03, 0.02)
"""Thresholds of published methods that watch a change."""
INTERVALS = (6, 5, 4, 3, 2)
TUNED_ON = 8
"""Samples that `tune` fits and chooses on, half each."""

FEWER, CACHED_SOLVER = "fewer steps", "any solver, speedup="
DEFAULT_NAME, TYPED = "accelerate(pipe, threshold=)", "accelerate(pipe)"
SPEEDUP, EVEN, TUNED = "accelerate(pipe, speedup=)", "even ticks", "tune(speedup=)"


@contextmanager
def _accelerated(
    pipe: Any, options: Options, setup: RaceSetup, *, method: str | None = None
) -> Iterator[None]:
    own = {name: value for name, value in options.items() if name not in ("steps", "solver")}
    accelerate(pipe, method, **own)
    try:
        yield
    finally:
        restore(pipe)


def _plain(pipe: Any, options: Options, setup: RaceSetup) -> AbstractContextManager[None]:
    return nullcontext()


def _tuned(pipe: Any, options: Options, setup: RaceSetup) -> AbstractContextManager[None]:
    schedule = _searched(setup, options["speedup"])
    return _attached(pipe, schedule)


@contextmanager
def _on_a_path(pipe: Any, options: Options, setup: RaceSetup, *, method: str) -> Iterator[None]:
    """A method with its published plan, or with what its calibration finds."""
    found = _calibrated(setup, method, options["speedup"]) if "speedup" in options else None
    with _accelerated(pipe, options, setup, method=method) if found is None else _attached(pipe, found):
        yield


@cache
def _calibrated(setup: RaceSetup, method: str, speedup: float) -> CacheConfig:
    """What a method's engine finds on calibration prompts and seeds."""
    return next(_fitted(setup, method).propose(1 / speedup))


@cache
def _fitted(setup: RaceSetup, method: str) -> TuningEngine:
    return ENGINES[method](_task(setup, range(0, TUNED_ON, 2)))


def _task(setup: RaceSetup, some: range) -> Task:
    """To fit on some of the calibration prompts, in one call."""
    return Task(pipe=zoo.load(setup.testbed), calls=[_fit_call(setup, some)], ticks=setup.steps)


def _fit_call(setup: RaceSetup, some: range) -> Any:
    part = splits.PARTS["search"]
    prompts = zoo.prompts(setup.testbed, TUNED_ON, part.prompts)
    return zoo.call_for(setup.testbed, [prompts[i] for i in some], [part.seed + i for i in some], setup.steps)


@contextmanager
def _attached(pipe: Any, config: Any = None) -> Iterator[None]:
    accelerate(pipe, config)
    try:
        yield
    finally:
        restore(pipe)


@cache
def _tuner(setup: RaceSetup) -> Tuner:
    fit, choose = range(0, TUNED_ON, 2), range(1, TUNED_ON, 2)
    task = _task(setup, fit)
    return Tuner(task, Parts(task.calls, [_fit_call(setup, choose)], []))


@cache
def _searched(setup: RaceSetup, speedup: float) -> CacheConfig:
    """What `tune` finds on calibration prompts and seeds."""
    return _tuner(setup).for_compute(1 / speedup).config


def _speedups(setup: RaceSetup) -> tuple[float, ...]:
    """As many ticks as each budget allows; the largest speed-up first."""
    ticks = whole_ticks(setup.steps, budgets_for(setup.steps))
    return tuple(setup.steps / count for count in ticks)


def _with_speedup(setup: RaceSetup) -> tuple[Sweep, ...]:
    return (Sweep("speedup", _speedups(setup)),)


def _cached_solver(setup: RaceSetup) -> tuple[Sweep, ...]:
    names = solvers(zoo.load(setup.testbed))
    return tuple(Sweep("speedup", _speedups(setup), {"solver": name}) for name in names)


def _fewer_steps(setup: RaceSetup) -> tuple[Sweep, ...]:
    counts = whole_ticks(setup.steps, budgets_for(setup.steps))
    return tuple(Sweep("steps", counts, {"solver": name}) for name in solvers(zoo.load(setup.testbed)))


def _deep(setup: RaceSetup) -> tuple[Sweep, ...]:
    return tuple(Sweep("interval", INTERVALS, {"depth": depth}) for depth in (1, 2, 4))


def _watching(setup: RaceSetup) -> tuple[Sweep, ...]:
    return (Sweep("threshold", CHANGES),)


def _taylor(setup: RaceSetup) -> tuple[Sweep, ...]:
    kinds = (("sub-layer", 1), ("stack", 1), ("stack", 2))
    return tuple(Sweep("interval", INTERVALS, {"site": site, "order": order}) for site, order in kinds)


def _growing(setup: RaceSetup) -> tuple[Sweep, ...]:
    """The published mixture of a regression and a line, and the regression alone."""
    growths = (6.0, 3.0, 1.5, 0.75, 0.0)
    return Sweep("growth", growths), Sweep("growth", growths, {"mixture": 1.0})


def _verified(setup: RaceSetup) -> tuple[Sweep, ...]:
    """As published, with two ticks that are not verified after each computed one; and with none."""
    bounds = (7.0, 3.0, 1.5, 0.7, 0.4, 0.2)
    return Sweep("threshold", bounds), Sweep("threshold", bounds, {"unverified": 0})


def _planned(setup: RaceSetup) -> tuple[Sweep, ...]:
    """Published plans, and its own for this pipeline."""
    return Sweep("budget", tuple(QWEN_IMAGE)[::-1]), *_with_speedup(setup)


def _speedy(name: str, method: str | None = None) -> Contender:
    return Contender(name, OURS, _with_speedup, partial(_accelerated, method=method), "whole ticks")


def _published(name: str, sweeps: Callable[[RaceSetup], tuple[Sweep, ...]]) -> Contender:
    return Contender(name, OURS, sweeps, partial(_accelerated, method=name), group="published")


def _on_paths(name: str, sweeps: Callable[[RaceSetup], tuple[Sweep, ...]]) -> Contender:
    return Contender(name, OURS, sweeps, partial(_on_a_path, method=name), group="published")


CONTENDERS = (
    Contender(FEWER, "", _fewer_steps, _plain, chosen_by=("full", "truth")),
    typed(TYPED, OURS, _attached),
    _speedy(SPEEDUP),
    _speedy(EVEN, "even"),
    Contender(TUNED, OURS, _with_speedup, _tuned, "whole ticks"),
    Contender(CACHED_SOLVER, OURS, _cached_solver, _accelerated, chosen_by=("truth",)),
    Contender(DEFAULT_NAME, OURS, lambda setup: (Sweep("threshold", THRESHOLDS),), _accelerated),
    _published("easycache", _watching),
    _published("teacache", _watching),
    _published("fbcache", _watching),
    _published("taylorseer", _taylor),
    _published("deepcache", _deep),
    _published("seacache", _watching),
    _published("spectrum", _growing),
    _published("speca", _verified),
    _on_paths("dpcache", _with_speedup),
    _on_paths("meancache", _planned),
)
