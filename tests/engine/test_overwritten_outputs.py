"""Modules that overwrite what they returned before (CUDA graphs): whatever is cached, results are those of ordinary modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.static_outputs import with_static_outputs
from torch import Tensor, nn
from zoo.denoisers import CASES, loop
from zoo.pipelines import CASES as PIPELINES

from diffcache import accelerate, denoising_run, report
from diffcache.discovery.taps import Tap
from diffcache.discovery.units import blocks_of, is_list_member, layers_of_blocks, sub_layers_of_blocks
from diffcache.recipes.fbcache import FBCacheConfig

STEPS = 8
FLUX, WAN, UNET = "FluxTransformer2DModel", "WanTransformer3DModel", "UNet2DConditionModel"

Options = dict[str, Any]
EVERY_SECOND: Options = {"interval": 2, "tail_steps": 0}


def blocks(net: nn.Module) -> list[nn.Module]:
    return [block for path, block in blocks_of(net).items() if is_list_member(path)]


def sub_layers(net: nn.Module) -> list[nn.Module]:
    return list(sub_layers_of_blocks(net).values())


def layers(net: nn.Module) -> list[nn.Module]:
    return list(layers_of_blocks(net).values())


PARTS = {"blocks": blocks, "sub-layers": sub_layers, "layers": layers}


def result(name: str, method: str, options: Options, parts: str = "", slots: int | None = None) -> Any:
    """The latents after a loop of the accelerated denoiser, and what was decided in it."""
    case = CASES[name]
    net = case.build()
    if parts:
        with_static_outputs(PARTS[parts](net), slots)
    accelerate(net, method, **options)
    with denoising_run(net, STEPS) as run:
        latents = loop(case, net, num_steps=STEPS, branches=2, begin_step=run.begin_step)
    return latents, report(net).decisions, report(net).cache_bytes


def same(a: Any, b: Any) -> bool:
    return (
        all(torch.equal(x, y) for x, y in zip(a[0], b[0], strict=True))
        and torch.equal(a[1], b[1])
        and a[2] == b[2]
        and not a[1].all()
    )


ANY: list[tuple[str, str, Options]] = [
    ("uniform", "stack", EVERY_SECOND),
    ("uniform", "stack[1..]", EVERY_SECOND),
    ("uniform", "stack[0..1]", EVERY_SECOND),
    ("uniform", "block", EVERY_SECOND),
    ("uniform", "block", {**EVERY_SECOND, "order": 2}),
    ("uniform", "stack", {**EVERY_SECOND, "cache_dtype": "int8"}),
    ("fbcache", "", {"threshold": 0.5}),
    ("teacache", "", {"threshold": 0.5}),
]


def of_site(site: str, options: Options) -> Options:
    return {**options, "site": site} if site else options


@pytest.mark.parametrize("slots", [None, 2, 1], ids=["own memory", "two memories", "one memory"])
@pytest.mark.parametrize(("method", "site", "options"), ANY, ids=str)
@pytest.mark.parametrize("name", [FLUX, WAN])
def test_blocks_that_overwrite_outputs_change_nothing(
    name: str, method: str, site: str, options: Options, slots: int | None
) -> None:
    options = of_site(site, options)
    assert same(result(name, method, options, "blocks", slots), result(name, method, options))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("taylorseer", {}),
        ("uniform", {**EVERY_SECOND, "site": "sub-layer"}),
        ("uniform", {**EVERY_SECOND, "site": "attention"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [FLUX, WAN])
def test_sub_layers_that_overwrite_outputs_change_nothing(name: str, method: str, options: Options) -> None:
    assert same(result(name, method, options, "sub-layers"), result(name, method, options))


@pytest.mark.parametrize(
    ("site", "parts"),
    [("depth 1", "layers"), ("depth 2", "layers"), ("block", "blocks"), ("stack", "blocks")],
)
def test_parts_of_a_unet_that_overwrite_outputs_change_nothing(site: str, parts: str) -> None:
    """Each in its own memory: long skips outlive the layers that follow."""
    options = {**EVERY_SECOND, "site": site}
    assert same(result(UNET, "uniform", options, parts), result(UNET, "uniform", options))


def test_a_schedule_is_replayed_over_blocks_that_overwrite_outputs() -> None:
    case = CASES[FLUX]
    net = case.build()
    accelerate(net, "uniform", site="block", **EVERY_SECOND)
    with denoising_run(net, STEPS) as run:
        loop(case, net, num_steps=STEPS, begin_step=run.begin_step)
    schedule = report(net).to_schedule()

    def replayed(*, static: bool) -> list[Tensor]:
        other = case.build()
        if static:
            with_static_outputs(blocks(other), 1)
        accelerate(other, schedule)
        with denoising_run(other, STEPS) as run:
            return loop(case, other, num_steps=STEPS, begin_step=run.begin_step)

    assert all(map(torch.equal, replayed(static=True), replayed(static=False)))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("uniform", EVERY_SECOND),
        ("uniform", {**EVERY_SECOND, "order": 2, "basis": "output"}),
        ("easycache", {"threshold": 0.5, "warmup_steps": 1}),
    ],
    ids=str,
)
def test_a_whole_denoiser_that_overwrites_its_output_changes_nothing(method: str, options: Options) -> None:
    def latents(*, static: bool) -> list[Tensor]:
        case = CASES[WAN]
        net = case.build()
        if static:
            with_static_outputs([net])
        accelerate(net, method, **options)
        with denoising_run(net, STEPS) as run:
            return loop(case, net, num_steps=STEPS, begin_step=run.begin_step)

    assert all(map(torch.equal, latents(static=True), latents(static=False)))


def test_guidance_passes_that_are_taken_apart_do_not_overwrite_each_other() -> None:
    """FasterCache calls the denoiser twice where the pipeline calls it once."""
    case = PIPELINES["StableDiffusionPipeline"]

    def picture(*, static: bool) -> Tensor:
        pipe = case.build()
        if static:
            with_static_outputs([pipe.unet.conv_out])
        return case.render(accelerate(pipe, "fastercache", guidance_interval=2), 0, STEPS)

    assert torch.equal(picture(static=True), picture(static=False))


@pytest.mark.parametrize(
    "tap", [Tap("transformer_blocks.1", of="output"), Tap("transformer_blocks.1", of="input")], ids=str
)
def test_what_a_signal_looks_at_is_not_overwritten(tap: Tap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FBCacheConfig, "tap", lambda config, run: tap)
    monkeypatch.setattr(FBCacheConfig, "sites", lambda config, run: ("stack[2..]",))
    options = {"threshold": 0.15}
    assert same(result(FLUX, "fbcache", options, "blocks", 1), result(FLUX, "fbcache", options))
