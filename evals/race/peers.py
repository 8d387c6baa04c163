"""The peers, as their users attach them: cache-dit, the caches of Diffusers, DeepCache.

Each is set up to do its best on the testbeds: guidance passes are told apart where the peer asks for it, modules are named
where its own patterns miss them, and ratios are calibrated on prompts that the race does not use.
"""

import ast
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import lru_cache, partial
from typing import Any

import torch
from diffusers import FirstBlockCacheConfig, MagCacheConfig, SeaCacheConfig, TaylorSeerCacheConfig

from diffcache.evals.race.contender import WARM_UP, Contender, Setup, spread
from diffcache.evals.testbeds import zoo

INTERVALS = (12, 10, 8, 6, 5, 4, 3, 2)
THRESHOLDS = (0.3, 0.2, 0.14, 0.1, 0.07, 0.05, 0.035, 0.025, 0.018)
TICKS = (6, 8, 10, 14, 18, 23, 27, 32)
"""A reused tick still costs the first block, so these numbers of ticks stay just within the budgets."""
TWO_PASSES = ("flux", "wan")
"""Testbeds whose pipelines call the denoiser once for each guidance pass; the others batch the passes."""
ATTENTIONS = [r".*blocks\.\d+\.attn\d?"]
BLOCKS = [r"(single_)?(transformer_)?blocks\.\d+"]


@contextmanager
def _cache_dit(
    pipe: Any, setting: float, setup: Setup, *, calibrator: str | None, masked: bool = False, order: int = 1
) -> Iterator[None]:
    """DBCache that computes one block in front: with more it would not reach the smallest budgets."""
    import cache_dit

    options: dict[str, Any] = {"residual_diff_threshold": setting, "max_warmup_steps": WARM_UP}
    if masked:
        mask = spread(int(setting), setup.steps)
        options = {
            "steps_computation_mask": [int(computed) for computed in mask],
            "steps_computation_policy": "static",
        }
    calibrators = {
        "TaylorSeer": cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=order),
        "FoCa": cache_dit.FoCaCalibratorConfig(),
    }
    config = cache_dit.DBCacheConfig(
        Fn_compute_blocks=1, Bn_compute_blocks=0, enable_separate_cfg=setup.testbed in TWO_PASSES, **options
    )
    given = {} if calibrator is None else {"calibrator_config": calibrators[calibrator]}
    cache_dit.enable_cache(pipe, cache_config=config, **given)
    try:
        yield
    finally:
        cache_dit.disable_cache(pipe)


@contextmanager
def _diffusers(pipe: Any, setting: float, setup: Setup, *, config: Callable[..., Any]) -> Iterator[None]:
    pipe.transformer.enable_cache(config(setting, setup))
    try:
        yield
    finally:
        pipe.transformer.disable_cache()


@contextmanager
def _deep_cache(pipe: Any, setting: float, setup: Setup) -> Iterator[None]:
    from DeepCache import DeepCacheSDHelper

    helper = DeepCacheSDHelper(pipe=pipe)
    helper.set_params(cache_interval=int(setting), cache_branch_id=0)
    helper.enable()
    try:
        yield
    finally:
        helper.disable()


@lru_cache
def mag_ratios(setup: Setup) -> tuple[float, ...]:
    """MagCache's ratios from its own calibration, which prints them for the user to copy."""
    pipe, printed = zoo.load(setup.testbed), io.StringIO()
    config = MagCacheConfig(calibrate=True, num_inference_steps=setup.steps)
    with redirect_stdout(printed), _diffusers(pipe, 0, setup, config=lambda *_: config):
        pipe(**zoo.sample_call(setup.testbed, 1000, setup.steps, 2, "calibration"))
    lines = printed.getvalue().splitlines()
    values = next(line for line in lines if line.startswith("[") and line.endswith("]"))
    return tuple(ast.literal_eval(values))


def _first_block(setting: float, setup: Setup) -> FirstBlockCacheConfig:
    return FirstBlockCacheConfig(threshold=setting)


def _mag(setting: float, setup: Setup) -> MagCacheConfig:
    return MagCacheConfig(
        threshold=setting,
        max_skip_steps=8,
        retention_ratio=WARM_UP / setup.steps,
        num_inference_steps=setup.steps,
        mag_ratios=list(mag_ratios(setup)),
    )


def _taylor(setting: float, setup: Setup, *, modules: list[str], order: int = 1) -> TaylorSeerCacheConfig:
    return TaylorSeerCacheConfig(
        cache_interval=int(setting),
        disable_cache_before_step=WARM_UP,
        max_order=order,
        taylor_factors_dtype=torch.float32,
        cache_identifiers=modules,
    )


def _sea(setting: float, setup: Setup) -> SeaCacheConfig:
    return SeaCacheConfig(threshold=setting, retention_steps=WARM_UP, max_consecutive_cached=8)


def _of_cache_dit(name: str, knob: str, settings: tuple[float, ...], **options: Any) -> Contender:
    return Contender(name, "cache-dit", knob, settings, partial(_cache_dit, **options))


def _of_diffusers(name: str, knob: str, settings: tuple[float, ...], config: Callable[..., Any]) -> Contender:
    return Contender(name, "diffusers", knob, settings, partial(_diffusers, config=config))


PEERS = (
    _of_cache_dit("DBCache", "threshold", THRESHOLDS, calibrator=None),
    _of_cache_dit("DBCache, TaylorSeer", "threshold", THRESHOLDS, calibrator="TaylorSeer"),
    _of_cache_dit("DBCache, FoCa", "threshold", THRESHOLDS, calibrator="FoCa"),
    _of_cache_dit("step mask, TaylorSeer", "ticks", TICKS, calibrator="TaylorSeer", masked=True),
    _of_cache_dit(
        "step mask, TaylorSeer, order 2", "ticks", TICKS, calibrator="TaylorSeer", masked=True, order=2
    ),
    _of_diffusers("FirstBlockCache", "threshold", THRESHOLDS, _first_block),
    _of_diffusers("MagCache", "threshold", THRESHOLDS, _mag),
    _of_diffusers("TaylorSeer, attention", "interval", INTERVALS, partial(_taylor, modules=ATTENTIONS)),
    _of_diffusers("TaylorSeer, blocks", "interval", INTERVALS, partial(_taylor, modules=BLOCKS)),
    _of_diffusers(
        "TaylorSeer, blocks, order 2", "interval", INTERVALS, partial(_taylor, modules=BLOCKS, order=2)
    ),
    _of_diffusers("SeaCache", "threshold", THRESHOLDS, _sea),
    Contender("DeepCache", "DeepCache", "interval", INTERVALS, _deep_cache),
)
