"""Where a peer implements the same method and runs, our pictures equal its pictures on the same tiny model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers.hooks import (
    FirstBlockCacheConfig,
    MagCacheConfig,
    PyramidAttentionBroadcastConfig,
    TaylorSeerCacheConfig,
    apply_first_block_cache,
    apply_mag_cache,
    apply_pyramid_attention_broadcast,
    apply_taylorseer_cache,
)
from diffusers.hooks.mag_cache import FLUX_MAG_RATIOS
from torch import Tensor
from zoo.pipelines import CASES

from diffcache import accelerate, report

SEED, STEPS = 4, 12
ROUNDING = 1e-6
"""Residuals are kept one precision wider here, and added in another order: a few units in the last place."""

FLUX = CASES["FluxPipeline"]


def ours(pipe: Any, case: Any, computed: list[int]) -> Tensor:
    picture = case.render(pipe, SEED, STEPS)
    assert report(pipe).computed_ticks == computed
    return picture


def same(theirs: Tensor, mine: Tensor, plain: Tensor, within: float = ROUNDING) -> None:
    torch.testing.assert_close(mine, theirs, rtol=0, atol=within)
    assert (theirs - plain).abs().max() > 100 * ROUNDING, "the peer did nothing"


@pytest.fixture(scope="module")
def plain() -> Tensor:
    return FLUX.render(FLUX.build(), SEED, STEPS)


def test_diffusers_first_block_cache(plain: Tensor) -> None:
    pipe = FLUX.build()
    apply_first_block_cache(pipe.transformer, FirstBlockCacheConfig(threshold=0.5))
    mine = ours(accelerate(FLUX.build(), "fbcache", threshold=0.5), FLUX, [0, 6])
    same(FLUX.render(pipe, SEED, STEPS), mine, plain)


def test_cache_dit_with_one_block_in_front(plain: Tensor) -> None:
    cache_dit = pytest.importorskip("cache_dit", reason="pip install diffcache[peers]")
    pipe = FLUX.build()
    config = cache_dit.DBCacheConfig(
        Fn_compute_blocks=1,
        Bn_compute_blocks=0,
        residual_diff_threshold=0.5,
        max_warmup_steps=0,
        max_cached_steps=-1,
        max_continuous_cached_steps=-1,
    )
    cache_dit.enable_cache(pipe, cache_config=config)
    mine = ours(accelerate(FLUX.build(), "fbcache", threshold=0.5), FLUX, [0, 6])
    same(FLUX.render(pipe, SEED, STEPS), mine, plain)


def test_diffusers_mag_cache(plain: Tensor) -> None:
    pipe = FLUX.build()
    apply_mag_cache(pipe.transformer, MagCacheConfig(num_inference_steps=STEPS, mag_ratios=FLUX_MAG_RATIOS))
    options = {"threshold": 0.06, "max_consecutive_reuses": 3, "warmup_steps": int(0.2 * STEPS + 0.5)}
    mine = accelerate(FLUX.build(), "magcache", ratios=tuple(FLUX_MAG_RATIOS.tolist()), **options)
    same(FLUX.render(pipe, SEED, STEPS), ours(mine, FLUX, [0, 1, 3, 5, 9, 11]), plain)


def test_diffusers_taylorseer_but_for_its_ticks(plain: Tensor) -> None:
    """Diffusers predicts tick 3 from its warm-up, and computes the next one; the paper's code counts from the warm-up.

    With Diffusers' ticks, written down as a schedule, the pictures are the same.
    """
    pipe = FLUX.build()
    apply_taylorseer_cache(
        pipe.transformer, TaylorSeerCacheConfig(cache_interval=5, taylor_factors_dtype=torch.float32)
    )
    options = {"site": "attention", "interval": 5, "order": 1, "warmup_steps": 3}
    mine = accelerate(FLUX.build(), "taylorseer", **options)
    ours(mine, FLUX, [0, 1, 2, 7])
    schedule = report(mine).to_schedule()
    table = {site: dict.fromkeys(rows, "###-#----#--") for site, rows in schedule.table.items()}
    accelerate(mine, replace(schedule, table=table))
    same(FLUX.render(pipe, SEED, STEPS), ours(mine, FLUX, [0, 1, 2, 4, 9]), plain)


def test_diffusers_pyramid_attention_broadcast(plain: Tensor) -> None:
    pipe = FLUX.build()
    config = PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=(100, 800),
        current_timestep_callback=lambda: (
            1000.0 if pipe.current_timestep is None else float(pipe.current_timestep)
        ),
    )
    apply_pyramid_attention_broadcast(pipe.transformer, config)
    mine = ours(accelerate(FLUX.build(), "pab"), FLUX, [0, 1, 2, 4, 6, 8, 10, 11])
    same(FLUX.render(pipe, SEED, STEPS), mine, plain)


@pytest.mark.parametrize(("threshold", "order"), [(0.5, 1), (0.9, 0)])
def test_diffusers_sea_cache(threshold: float, order: int) -> None:
    sea_cache = pytest.importorskip("diffusers.hooks.sea_cache")
    case = CASES["WanPipeline"]
    pipe = case.build()
    pipe.transformer.enable_cache(sea_cache.SeaCacheConfig(threshold=threshold, residual_order=order))
    mine = accelerate(case.build(), "seacache", threshold=threshold, order=order)
    picture = case.render(mine, SEED, STEPS)
    computed = len(report(mine).computed_ticks)
    assert 2 < computed < STEPS
    # a reused tick adds one residual, or two for a line, and each addition rounds
    within = (1 + order) * (STEPS - computed) * torch.finfo(picture.dtype).eps * float(picture.abs().max())
    same(case.render(pipe, SEED, STEPS), picture, case.render(case.build(), SEED, STEPS), within)


@pytest.mark.parametrize("branch", range(4))
def test_deepcache_at_every_depth(branch: int) -> None:
    deep_cache = pytest.importorskip("DeepCache", reason="pip install diffcache[peers]")
    case = CASES["StableDiffusionPipeline"]
    pipe = case.build()
    helper = deep_cache.DeepCacheSDHelper(pipe=pipe)
    helper.set_params(cache_interval=3, cache_branch_id=branch)
    helper.enable()
    mine = ours(accelerate(case.build(), "deepcache", interval=3, depth=branch + 1), case, [0, 3, 6, 9])
    same(case.render(pipe, SEED, STEPS), mine, case.render(case.build(), SEED, STEPS), within=0)
