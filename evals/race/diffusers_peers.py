"""The contenders of Diffusers' own hooks, and of the DeepCache package.

Each is set up to do its best on the testbeds: modules are named where its own patterns miss them, factors are kept in fp32, and
ratios are calibrated on prompts that the race does not use.
"""

import ast
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache, partial
from typing import Any

import diffusers
import torch

from diffcache.evals.harness.calls import call_of
from diffcache.evals.race.contender import WARM_UP, Contender, Options, RaceSetup, Sweep, typed
from diffcache.evals.testbeds import zoo

PACKAGE = "diffusers"
CHANGES = (0.4, 0.25, 0.16, 0.1, 0.07, 0.045, 0.03, 0.02)
INTERVALS = (6, 5, 4, 3, 2)
MODULES = {"attention": [r".*blocks\.\d+\.attn\d?"], "blocks": [r"(single_)?(transformer_)?blocks\.\d+"]}
BATCHED = ("sd3", "pixart", "dit", "fashion", "sana")
"""Testbeds whose pipelines batch the guidance passes."""
LATE = 0.72
"""Share of the run from which TaylorSeer computes every tick, where it is told to."""

Make = Callable[[Any, Options, RaceSetup], Any]
"""A config, for a pipeline."""


@contextmanager
def _enabled(pipe: Any, options: Options, setup: RaceSetup, make: Make) -> Iterator[None]:
    pipe.transformer.enable_cache(make(pipe, options, setup))
    try:
        yield
    finally:
        pipe.transformer.disable_cache()


def _taylor(pipe: Any, options: Options, setup: RaceSetup) -> Any:
    modules = options["modules"]
    named = {"use_lite_mode": True} if modules == "lite" else {"cache_identifiers": MODULES[modules]}
    after = round(LATE * setup.steps) if options["after"] else None
    return diffusers.TaylorSeerCacheConfig(
        cache_interval=options["cache_interval"],
        disable_cache_before_step=options["before"],
        disable_cache_after_step=after,
        max_order=options["max_order"],
        taylor_factors_dtype=torch.float32,
        **named,
    )


def _mag(pipe: Any, options: Options, setup: RaceSetup) -> Any:
    return diffusers.MagCacheConfig(
        num_inference_steps=setup.steps, mag_ratios=list(mag_ratios(setup)), **options
    )


@cache
def mag_ratios(setup: RaceSetup) -> tuple[float, ...]:
    """MagCache's ratios from its own calibration, which prints them for the user to copy."""
    pipe, printed = zoo.load(setup.testbed), io.StringIO()
    config = diffusers.MagCacheConfig(calibrate=True, num_inference_steps=setup.steps)
    with redirect_stdout(printed), _enabled(pipe, {}, setup, lambda *_: config):
        pipe(**call_of(setup.testbed, "search", setup.steps, 2))
    lines = printed.getvalue().splitlines()
    values = next(line for line in lines if line.startswith("[") and line.endswith("]"))
    return tuple(ast.literal_eval(values))


def _timestep(pipe: Any) -> Callable[[], int]:
    """What PAB and FasterCache ask for: the timestep that is on."""
    return lambda: int(getattr(pipe, "current_timestep", None) or pipe.scheduler.timesteps[0])


def _pab(pipe: Any, options: Options, setup: RaceSetup) -> Any:
    given = dict(options)
    window = given.pop("window")
    ranges = {f"{kind}_attention_block_skip_range": given["skip_range"] for kind in ("spatial", "cross")}
    windows = {f"{kind}_attention_timestep_skip_range": tuple(window) for kind in ("spatial", "cross")}
    return diffusers.PyramidAttentionBroadcastConfig(
        **ranges, **windows, current_timestep_callback=_timestep(pipe)
    )


def _faster(pipe: Any, options: Options, setup: RaceSetup) -> Any:
    given = dict(options)
    window = tuple(given.pop("window"))
    return diffusers.FasterCacheConfig(
        spatial_attention_timestep_skip_range=window,
        current_timestep_callback=_timestep(pipe),
        attention_weight_callback=lambda _: 0.5,
        tensor_format="BCFHW" if setup.testbed == "wan" else "BCHW",
        **given,
    )


@contextmanager
def _deep_cache(pipe: Any, options: Options, setup: RaceSetup) -> Iterator[None]:
    from DeepCache import DeepCacheSDHelper

    helper = DeepCacheSDHelper(pipe=pipe)
    helper.set_params(**options)
    helper.enable()
    try:
        yield
    finally:
        helper.disable()


def _taylor_sweeps(setup: RaceSetup) -> tuple[Sweep, ...]:
    kinds = (
        ("blocks", 1, WARM_UP, False), ("blocks", 1, 1, False), ("blocks", 1, 1, True),
        ("blocks", 2, WARM_UP, False), ("lite", 1, 1, False), ("lite", 1, WARM_UP, False),
        ("lite", 1, 1, True), ("lite", 2, WARM_UP, False), ("attention", 1, WARM_UP, False),
    )  # fmt: skip
    return tuple(
        Sweep(
            "cache_interval",
            INTERVALS,
            {"modules": modules, "max_order": order, "before": before, "after": after},
        )
        for modules, order, before, after in kinds
    )


def _mag_sweeps(setup: RaceSetup) -> tuple[Sweep, ...]:
    kinds = ((3, 0.2), (8, WARM_UP / setup.steps))
    return tuple(
        Sweep("threshold", CHANGES, {"max_skip_steps": most, "retention_ratio": kept}) for most, kept in kinds
    )


def _sea_sweeps(setup: RaceSetup) -> tuple[Sweep, ...]:
    kinds = ((1, 8), (0, 8))
    return tuple(
        Sweep(
            "threshold",
            CHANGES,
            {"residual_order": order, "max_consecutive_cached": most, "retention_steps": WARM_UP},
        )
        for order, most in kinds
    )


def _pab_sweeps(setup: RaceSetup) -> tuple[Sweep, ...]:
    windows = ((-1, 1001), (100, 800))
    return tuple(Sweep("skip_range", (8, 6, 4, 2), {"window": window}) for window in windows)


def _faster_sweeps(setup: RaceSetup) -> tuple[Sweep, ...]:
    distilled = setup.testbed not in BATCHED
    return tuple(
        Sweep(
            "spatial_attention_block_skip_range",
            (8, 6, 4, 2),
            {"window": window, "is_guidance_distilled": distilled},
        )
        for window in ((-1, 901), (-1, 681))
    )


def _deep_sweeps(setup: RaceSetup) -> tuple[Sweep, ...]:
    return tuple(Sweep("cache_interval", INTERVALS, {"cache_branch_id": branch}) for branch in (0, 1, 3))


def _hook(name: str, sweeps: Callable[[RaceSetup], tuple[Sweep, ...]], make: Make) -> Contender:
    return Contender(name, PACKAGE, sweeps, partial(_enabled, make=make), group=PACKAGE)


def _typed(name: str, make: Callable[[], Any]) -> Contender:
    empty = RaceSetup("", 0)
    return typed(name, PACKAGE, lambda pipe: _enabled(pipe, {}, empty, lambda *_: make()))


PEERS = (
    _typed("FirstBlockCacheConfig()", diffusers.FirstBlockCacheConfig),
    _typed("TaylorSeerCacheConfig()", diffusers.TaylorSeerCacheConfig),
    _hook(
        "FirstBlockCache",
        lambda setup: (Sweep("threshold", CHANGES),),
        lambda p, o, s: diffusers.FirstBlockCacheConfig(**o),
    ),
    _hook("TaylorSeer", _taylor_sweeps, _taylor),
    _hook("MagCache", _mag_sweeps, _mag),
    _hook("SeaCache", _sea_sweeps, lambda p, o, s: diffusers.SeaCacheConfig(**o)),
    _hook("PAB", _pab_sweeps, _pab),
    _hook("FasterCache", _faster_sweeps, _faster),
    Contender("DeepCache", "DeepCache", _deep_sweeps, _deep_cache),
)
