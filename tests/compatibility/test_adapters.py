"""LoRA, IP-Adapter and ControlNet work with a cache, and a tick at which one of them has changed is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compatibility.levels import SITES, Cell, each_level, site, slow, verdict, with_cache
from support.features import at_step, denoiser, lora
from support.harness import STEPS, counted, plain, render
from torch import Tensor
from zoo.denoisers import get
from zoo.pipeline_case import noise
from zoo.pipelines import CASES

from diffcache import accelerate, denoising_run, report, restore

GROUP = "Adapters"
NAMES = ["FluxPipeline", slow("StableDiffusionPipeline")]
PICTURES = {"ip_adapter_image_embeds": [noise(2, 1, 12, seed=8)]}
"""Embeddings for an IP-Adapter: without the picture, and with it."""


def ip_adapter(pipe: Any) -> None:
    """Loads an IP-Adapter with random weights, in the form of its file."""
    keys = {}
    attentions = [a for name, a in pipe.unet.named_modules() if name.endswith("attn2")]
    for i, attention in enumerate(attentions):
        shape = attention.to_k.weight.shape
        for part in ("to_k_ip", "to_v_ip"):
            keys[f"{2 * i + 1}.{part}.weight"] = noise(*shape, seed=i)
    width = pipe.unet.config.cross_attention_dim
    projection = {
        "proj.weight": noise(4 * width, 12, seed=1),
        "proj.bias": torch.zeros(4 * width),
        "norm.weight": torch.ones(width),
        "norm.bias": torch.zeros(width),
    }
    weights = {"image_proj": projection, "ip_adapter": keys}
    pipe.load_ip_adapter(weights, subfolder=None, weight_name=None, image_encoder_folder=None)


# -- loaded ---------------------------------------------------------------------------------------------------------


@each_level
@pytest.mark.parametrize("name", NAMES)
def test_lora_loaded(name: str, level: str, cell: Cell) -> None:
    assert verdict(name, lora, level) == "works"
    cell(GROUP, "LoRA", level)


@each_level
def test_ip_adapter_loaded(level: str, cell: Cell) -> None:
    name = "StableDiffusionPipeline"
    assert verdict(name, ip_adapter, level, **PICTURES) == "works"
    cell(GROUP, "IP-Adapter", level)


# -- changed between runs -------------------------------------------------------------------------------------------


@each_level
def test_lora_changed_between_runs(level: str, cell: Cell) -> None:
    """After the last change, a run equals that of a pipeline which never had the adapter."""
    name = NAMES[0]
    pipe = with_cache(name, lora, level, 2, cache_first=True)
    before = render(pipe, name)
    for change in (
        lambda p: denoiser(p).set_adapters("one", 0.3),
        lambda p: lora(p, "other"),
        lambda p: denoiser(p).unload_lora(),
    ):
        change(pipe)
        image = render(pipe, name)
        assert not torch.equal(image, before)
        before = image
    assert torch.equal(image, render(with_cache(name, lambda p: None, level, 2, cache_first=True), name))
    cell(GROUP, "LoRA: scale, load, unload between runs", level)


@each_level
def test_ip_adapter_changed_between_runs(level: str, cell: Cell) -> None:
    name = "StableDiffusionPipeline"
    pipe = with_cache(name, ip_adapter, level, 2, cache_first=True)
    before = render(pipe, name, **PICTURES)
    pipe.set_ip_adapter_scale(0.3)
    assert not torch.equal(render(pipe, name, **PICTURES), before)
    pipe.unload_ip_adapter()
    assert torch.equal(
        render(pipe, name), render(with_cache(name, lambda p: None, level, 2, cache_first=True), name)
    )
    cell(GROUP, "IP-Adapter: scale, unload between runs", level)


# -- changed during a run -------------------------------------------------------------------------------------------

LORA_CHANGES: dict[str, Callable[[Any], None]] = {
    "scale": lambda pipe: denoiser(pipe).set_adapters("one", 0.25),
    "load": lambda pipe: lora(pipe, "other"),
    "unload": lambda pipe: denoiser(pipe).unload_lora(),
}


def changed_half_way(pipe: Any, name: str, change: Callable[[Any], None], **call: Any) -> None:
    """A change after tick 2 makes tick 3 compute; without the change it would be reused."""
    render(pipe, name, callback_on_step_end=at_step(2, change), **call)
    told = report(pipe)
    assert told.computed_ticks == [0, 3, STEPS - 1]
    assert any("adapters" in reason for reason in told.reasons)


@each_level
@pytest.mark.parametrize("change", LORA_CHANGES)
def test_lora_changed_during_a_run_computes(change: str, level: str, cell: Cell) -> None:
    pipe = with_cache(NAMES[0], lora, level, 6, cache_first=True)
    changed_half_way(pipe, NAMES[0], LORA_CHANGES[change])
    cell(GROUP, "LoRA: scale, load, unload during a run: computed", level)


@each_level
def test_ip_adapter_changed_during_a_run_computes(level: str, cell: Cell) -> None:
    name = "StableDiffusionPipeline"
    pipe = with_cache(name, ip_adapter, level, 6, cache_first=True)
    changed_half_way(pipe, name, lambda p: p.set_ip_adapter_scale(0.3), **PICTURES)
    cell(GROUP, "IP-Adapter: scale during a run: computed", level)


# -- ControlNet -----------------------------------------------------------------------------------------------------

CONTROLLED = "StableDiffusionControlNetPipeline"
BOTH = ("unet", "controlnet")


@each_level
def test_the_control_network_itself_is_left_alone(level: str, cell: Cell) -> None:
    pipe = accelerate(CASES[CONTROLLED].build(), "uniform", interval=2, site=site(CONTROLLED, level))
    own = type(plain(CONTROLLED).controlnet)
    assert type(pipe.controlnet) is own
    with counted(pipe, ("controlnet",)) as calls:
        with_control = render(pipe, CONTROLLED)
    assert calls["controlnet"] == STEPS
    assert 0 < report(pipe).compute_fraction < 1
    assert not torch.equal(with_control, render(pipe, CONTROLLED, controlnet_conditioning_scale=0.2))
    cell(GROUP, "ControlNet: runs at every tick itself", level)


@each_level
@pytest.mark.parametrize("components", [("controlnet",), BOTH], ids="+".join)
def test_a_control_network_is_cached_when_named(components: tuple[str, ...], level: str, cell: Cell) -> None:
    pipe, where = CASES[CONTROLLED].build(), site(CONTROLLED, level)
    expected = render(plain(CONTROLLED), CONTROLLED)
    accelerate(pipe, "uniform", interval=1, site=where, components=components)
    assert torch.equal(render(pipe, CONTROLLED), expected)
    accelerate(pipe, "uniform", interval=2, site=where, components=components)
    assert not torch.equal(render(pipe, CONTROLLED), expected)
    (run,) = report(pipe).records
    reused = {call.site.partition(".")[0] for call in run.calls if call.computed == 0}
    assert reused == set(components) == set(run.models)
    assert torch.equal(render(restore(pipe), CONTROLLED), expected)
    assert all(type(pipe.components[name]) is type(plain(CONTROLLED).components[name]) for name in BOTH)
    feature = (
        "ControlNet: cached itself, alone" if len(components) == 1 else "ControlNet: cached, and its denoiser"
    )
    cell(GROUP, feature, level)


def test_the_calls_that_a_cached_control_network_saves() -> None:
    pipe = accelerate(CASES[CONTROLLED].build(), "uniform", interval=2, components=BOTH)
    with counted(pipe, BOTH) as calls:
        render(pipe, CONTROLLED)
    told = Counter(call.site for call in report(pipe).records[0].calls if call.computed)
    assert calls == told
    assert calls["controlnet"] == 4


@each_level
def test_a_cached_control_network_follows_its_scale(level: str, cell: Cell) -> None:
    """Its scale falls to zero half-way: at that tick its earlier residuals are not reused, nor the UNet's earlier output."""
    pipe, where = CASES[CONTROLLED].build(), site(CONTROLLED, level)
    accelerate(pipe, "uniform", interval=STEPS, tail_steps=0, site=where, components=BOTH)
    render(pipe, CONTROLLED, control_guidance_end=0.5)
    (run,) = report(pipe).records
    reused = {(call.site.partition(".")[0], call.tick) for call in run.calls if call.computed == 0}
    change = STEPS // 2
    assert {("controlnet", change - 1), ("controlnet", change + 1)} <= reused
    assert ("controlnet", change) not in reused
    if level == "whole model":
        assert ("unet", change) not in reused
    cell(GROUP, "ControlNet cached: its scale changes during a run: computed", level)


@pytest.mark.parametrize("level", SITES)
def test_residuals_of_a_control_network_at_a_reused_tick(level: str, cell: Cell) -> None:
    """What is added between sites is this tick's; what is added inside a reused site is reused with it."""
    case = get("FluxTransformer2DModel")
    net = accelerate(case.build(), "uniform", interval=2, tail_steps=0, site=SITES[level])
    inputs = case.inputs(torch.Generator().manual_seed(0), 1)
    tokens = inputs["hidden_states"].shape[1]
    width = net.config.num_attention_heads * net.config.attention_head_dim

    def output(seed: int) -> Tensor:
        control = [noise(1, tokens, width, seed=seed)]
        result: Tensor = net(**inputs, controlnet_block_samples=control)[0]
        return result

    with torch.no_grad(), denoising_run(net, 4) as run:
        run.begin_step(0)
        first = output(seed=1)
        run.begin_step(1)
        again = output(seed=2)
    assert report(net).computed_ticks == [0]
    follows = level in ("block", "sub-layer")
    assert torch.equal(first, again) != follows
    cell(
        GROUP,
        "ControlNet: residuals of this tick, at a reused tick",
        level,
        "works" if follows else "no: they are part of what is reused, for as long as it is reused",
    )
