"""Site names that mean nothing in a denoiser are refused at once; whatever `discover` lists is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import flows
from support.harness import STEPS
from zoo.denoisers import CASES
from zoo.pipelines import CASES as PIPELINES

from diffcache import TargetError, accelerate, discover, report
from diffcache.discovery.missing_sites import missing_site, names_of_sites
from diffcache.discovery.units import is_flat
from diffcache.recipes.deepcache import DeepCacheConfig
from diffcache.schedulers.errors import ConfigError

FLUX = "FluxPipeline"


@pytest.mark.parametrize("name", CASES)
def test_every_site_that_is_discovered_may_exist(name: str) -> None:
    case = CASES[name]
    net = case.build().eval()
    table = discover(net, **case.inputs(torch.Generator().manual_seed(0), 1))
    usable = [site for site in table if site.reason is None]
    kinds = {site.kind for site in usable} - {"depth", "range"}
    for site in {*kinds, *(site.name for site in usable)}:
        assert missing_site(net, (site,)) is None, site


@pytest.mark.parametrize(
    "site",
    [
        "transformer_blocks.99",
        "blocks.0",
        "stac",
        "stack[1:3]",
        "depth 0",
        "depth",
        "transformer_blocks.0..transformer_blocks.99",
        "transformer_blocks.0.attn7",
        "transformer_blocks",
        "proj_out",
        "layers",
    ],
)
def test_a_site_that_does_not_exist_is_refused_at_once(site: str) -> None:
    pipe = PIPELINES[FLUX].build()
    own = type(pipe.transformer)
    with pytest.raises(TargetError) as error:
        accelerate(pipe, "uniform", site=site)
    assert str(error.value) == (
        f"FluxTransformer2DModel has no site {site!r}: choose among model, stack, block, attention, feed-forward, parallel, "
        "transformer_blocks.0 to transformer_blocks.2, single_transformer_blocks.0 to single_transformer_blocks.2."
    )
    assert type(pipe.transformer) is own
    accelerate(pipe, "uniform", interval=3)
    with pytest.raises(TargetError, match="no site"):
        accelerate(pipe, "uniform", site=site)
    PIPELINES[FLUX].render(pipe, 0, STEPS)
    assert report(pipe).options["interval"] == 3


def test_the_sites_of_a_method_that_names_blocks_are_looked_up() -> None:
    with pytest.raises(TargetError, match=r"has no site 'blocks\.2\.\.blocks\.40'"):
        accelerate(PIPELINES["WanPipeline"].build(), "profilingdit", blocks=("blocks.2..blocks.40",))


@pytest.mark.parametrize("name", ["UNet2DConditionModel", "StableCascadeUNet", "HunyuanDiT2DModel"])
def test_what_has_depths_is_not_flat(name: str) -> None:
    net = CASES[name].build()
    assert not is_flat(net)
    accelerate(net, "deepcache")


@pytest.mark.parametrize("name", ["FluxTransformer2DModel", "SD3Transformer2DModel", "WanTransformer3DModel"])
def test_deepcache_is_refused_where_blocks_are_alike(name: str) -> None:
    net = CASES[name].build()
    own = type(net)
    with pytest.raises(TargetError, match=f"{name} cannot be cached at 'depth 1': deepcache is for UNets"):
        accelerate(net, "deepcache")
    assert type(net) is own


def test_deepcache_beside_a_prior_says_which_components_it_takes() -> None:
    parts = {"prior": CASES["PriorTransformer"].build(), "unet": CASES["UNet2DConditionModel"].build()}
    with pytest.raises(TargetError, match=r"PriorTransformer cannot .*: components=\('unet',\)"):
        DeepCacheConfig().check(parts)
    DeepCacheConfig().check({"unet": parts["unet"]})


def test_like_blocks_with_long_skips_may_be_cached_by_depth() -> None:
    net: Any = flows.LongSkips()
    with pytest.raises(TargetError, match='uniform with site="depth 1" if skip connections join'):
        accelerate(net, "deepcache")
    accelerate(net, "uniform", site="depth 1")
    assert names_of_sites(net) == (
        "model, stack, block, down_blocks.0 to down_blocks.1, up_blocks.0 to up_blocks.1"
    )


def test_a_denoiser_without_blocks_has_the_whole_model_only() -> None:
    class Bare(torch.nn.Module):
        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return x + t

    for site in ("stack", "block", "depth 1", "attention"):
        with pytest.raises(TargetError, match=f"Bare has no site '{site}': choose among model."):
            accelerate(Bare(), "uniform", site=site)


@pytest.mark.parametrize(
    ("name", "site", "there"),
    [
        ("FluxPipeline", "stack[0..99]", r"its stack has blocks 0 to \d"),
        ("StableDiffusionPipeline", "depth 99", r"it has depth 1 to depth \d"),
    ],
)
def test_of_a_stack_or_a_depth_it_is_told_how_far_it_goes(name: str, site: str, there: str) -> None:
    case = PIPELINES[name]
    pipe = accelerate(case.build(), "uniform", site=site)
    with pytest.raises(TargetError, match=there):
        case.render(pipe, 0, STEPS)


def test_a_budget_without_a_plan_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="budget must be one of 25, 17, 10 or 50"):
        accelerate(PIPELINES[FLUX].build(), "meancache", budget=12)
