"""cache-dit's contenders: DBCache, its step masks, and DBPrune, with its calibrators."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from diffcache.evals.harness.calls import call_of
from diffcache.evals.race.budgets import budgets_for
from diffcache.evals.race.contender import (
    WARM_UP,
    Contender,
    Options,
    RaceSetup,
    Sweep,
    even_mask,
    tick_counts,
    typed,
    whole_ticks,
)
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.frozen import frozen
from diffcache.recipes.trajectory import TrajectoryConfig

PACKAGE = "cache-dit"
DIFFERENCES = (0.4, 0.25, 0.16, 0.1, 0.07, 0.045, 0.03, 0.02)
TWO_PASSES = ("flux", "wan")
"""Testbeds whose pipelines call the denoiser once for each guidance pass; the others batch the passes."""
CALIBRATED = ("none", "TaylorSeer 1", "TaylorSeer 2", "FoCa", "DMD")
PRESETS = ("ultra", "fast", "medium", "slow")
"""cache-dit's own masks, the one that computes least first."""


@contextmanager
def _attached(
    pipe: Any, kind: str, setup: RaceSetup, calibrator: Any = None, **options: Any
) -> Iterator[None]:
    import cache_dit

    config = getattr(cache_dit, kind)(enable_separate_cfg=setup.testbed in TWO_PASSES, **options)
    cache_dit.enable_cache(
        pipe, cache_config=config, **({} if calibrator is None else {"calibrator_config": calibrator})
    )
    try:
        yield
    finally:
        cache_dit.disable_cache(pipe)


def _calibrator(name: str) -> Any:
    import cache_dit

    if name.startswith("TaylorSeer"):
        return cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=int(name.split()[1]))
    made = {"FoCa": cache_dit.FoCaCalibratorConfig, "DMD": cache_dit.DMDCalibratorConfig}
    return made[name]() if name in made else None


@contextmanager
def _cached(pipe: Any, options: Options, setup: RaceSetup, kind: str) -> Iterator[None]:
    """DBCache or DBPrune under a threshold; with the 8 blocks in front that it has by default no budget is reached."""
    given = dict(options)
    calibrator = _calibrator(given.pop("calibrator"))
    given.setdefault("max_warmup_steps", WARM_UP)
    with _attached(pipe, kind, setup, calibrator, **given):
        yield


@contextmanager
def _masked(pipe: Any, options: Options, setup: RaceSetup) -> Iterator[None]:
    """DBCache whose computed ticks are given: "static" reuse of the others."""
    mask = _mask(setup, options["mask"], options.get("ticks") or options["preset"])
    with _attached(
        pipe,
        "DBCacheConfig",
        setup,
        _calibrator(options["calibrator"]),
        Fn_compute_blocks=1,
        Bn_compute_blocks=0,
        steps_computation_mask=list(mask),
        steps_computation_policy="static",
    ):
        yield


@cache
def _mask(setup: RaceSetup, kind: str, ticks: Any) -> tuple[int, ...]:
    import cache_dit

    if kind == "preset":
        return tuple(cache_dit.steps_mask(total_steps=setup.steps, mask_policy=ticks))
    if kind == "even":
        return tuple(map(int, even_mask(ticks, setup.steps)))
    call = call_of(setup.testbed, "search", setup.steps, 1)
    found = frozen(zoo.load(setup.testbed), call, TrajectoryConfig(speedup=setup.steps / ticks))
    return tuple(int(tick in found.computed_ticks) for tick in range(setup.steps))


def _blocks(setup: RaceSetup) -> tuple[Sweep, ...]:
    blocks = ((1, 0, CALIBRATED), (1, 1, ("TaylorSeer 1",)), (2, 0, ("TaylorSeer 1",)))
    return tuple(
        Sweep(
            "residual_diff_threshold",
            DIFFERENCES,
            {"Fn_compute_blocks": front, "Bn_compute_blocks": back, "calibrator": calibrator},
        )
        for front, back, calibrators in blocks
        for calibrator in calibrators
    )


def _masks(setup: RaceSetup) -> tuple[Sweep, ...]:
    even = [("even", calibrator) for calibrator in ("none", "TaylorSeer 1", "TaylorSeer 2", "DMD")]
    kinds = [*even, ("trajectory's ticks", "TaylorSeer 1"), ("trajectory's ticks", "TaylorSeer 2")]
    chosen = {
        "even": tick_counts(setup.steps),
        "trajectory's ticks": whole_ticks(setup.steps - 1, budgets_for(setup.steps)),
    }
    found = [Sweep("ticks", chosen[kind], {"mask": kind, "calibrator": name}) for kind, name in kinds]
    preset = Sweep("preset", PRESETS, {"mask": "preset", "calibrator": "TaylorSeer 1"})
    return (*found, preset)


def _prunes(setup: RaceSetup) -> tuple[Sweep, ...]:
    return tuple(
        Sweep(
            "residual_diff_threshold",
            DIFFERENCES,
            {"Fn_compute_blocks": 1, "Bn_compute_blocks": 0, "calibrator": name, **options},
        )
        for name, options in (("TaylorSeer 1", {}), ("none", {"enable_dynamic_prune_threshold": True}))
    )


@contextmanager
def _defaults(pipe: Any) -> Iterator[None]:
    import cache_dit

    cache_dit.enable_cache(pipe)
    try:
        yield
    finally:
        cache_dit.disable_cache(pipe)


PEERS = (
    typed("enable_cache(pipe)", PACKAGE, _defaults),
    Contender("DBCache", PACKAGE, _blocks, lambda p, o, s: _cached(p, o, s, "DBCacheConfig"), group=PACKAGE),
    Contender("step masks", PACKAGE, _masks, _masked, group=PACKAGE),
    Contender("DBPrune", PACKAGE, _prunes, lambda p, o, s: _cached(p, o, s, "DBPruneConfig"), group=PACKAGE),
)
