"""Offloading, casting and LoRA go on working after `accelerate`, in either order, and after `restore`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.utils import get_peft_model_state_dict
from support.features import (
    at_step,
    attention_slicing,
    bfloat16,
    channels_last,
    denoiser,
    group_offload,
    layerwise_casting,
    leaf_offload,
    lora,
    model_offload,
)
from support.harness import (
    STEPS,
    accelerated,
    all_calls,
    computed_calls,
    counted,
    reference,
    reference_calls,
    render,
)
from torch import Tensor
from zoo.pipelines import CASES

from diffcache import accelerate, report, restore

NAMES = ["WanPipeline", "StableDiffusionPipeline"]


FEATURES: list[tuple[str, Callable[[Any], None]]] = [
    ("WanPipeline", model_offload),
    ("WanPipeline", group_offload),
    ("WanPipeline", layerwise_casting),
    ("WanPipeline", bfloat16),
    ("WanPipeline", lora),
    ("StableDiffusionPipeline", model_offload),
    ("StableDiffusionPipeline", leaf_offload),
    ("StableDiffusionPipeline", channels_last),
    ("StableDiffusionPipeline", attention_slicing),
    ("StableDiffusionPipeline", lora),
]
each_feature = pytest.mark.parametrize(
    ("name", "feature"), FEATURES, ids=[f"{name}-{feature.__name__}" for name, feature in FEATURES]
)
each_pipeline = pytest.mark.parametrize("name", NAMES)


@functools.cache
def expected(name: str, feature: Callable[[Any], None], seed: int = 0) -> Tensor:
    """What the plain pipeline renders with the feature."""
    pipe = CASES[name].build()
    feature(pipe)
    return render(pipe, name, seed=seed)


def both(name: str, feature: Callable[[Any], None], order: str, method: str, **options: Any) -> Any:
    """A fresh pipeline with a feature and a cache, whichever came first."""
    pipe = CASES[name].build()
    if order == "feature-first":
        feature(pipe)
    accelerate(pipe, method, **options)
    if order == "cache-first":
        feature(pipe)
    return pipe


@each_feature
@pytest.mark.parametrize("order", ["feature-first", "cache-first"])
def test_all_compute_is_exact_with_it(name: str, feature: Callable[[Any], None], order: str) -> None:
    pipe = both(name, feature, order, "easycache", threshold=0)
    for seed in (0, 1):  # model offloading puts its hooks on anew after each run
        assert torch.equal(render(pipe, name, seed=seed), expected(name, feature, seed))
    assert all_calls(report(pipe)) == computed_calls(report(pipe)) == reference_calls(name)
    restore(pipe)
    assert torch.equal(render(pipe, name), expected(name, feature))


@each_feature
def test_reuse_works_with_it_in_both_orders(name: str, feature: Callable[[Any], None]) -> None:
    images = []
    for order in ("feature-first", "cache-first"):
        pipe = both(name, feature, order, "uniform", interval=2)
        with counted(pipe, CASES[name].denoisers) as calls:
            images += [render(pipe, name), render(pipe, name)]
        told = report(pipe)
        assert told.computed_ticks == [0, 2, 4, 5]
        assert 2 * computed_calls(told).total() == calls.total()
    assert all(torch.equal(image, images[0]) for image in images)
    assert not torch.equal(images[0], expected(name, feature))
    assert torch.equal(render(restore(pipe), name), expected(name, feature))


@each_pipeline
def test_offloading_can_be_taken_off_again(name: str) -> None:
    pipe = both(name, model_offload, "feature-first", "easycache", threshold=0)
    render(pipe, name)
    pipe.remove_all_hooks()
    assert torch.equal(render(pipe, name), reference(name))
    model_offload(pipe)
    assert torch.equal(render(pipe, name), reference(name))
    pipe.to("cpu")
    restore(pipe)
    assert torch.equal(render(pipe, name), reference(name))


# -- LoRA ---------------------------------------------------------------------------------------------------------


@each_pipeline
@pytest.mark.parametrize("order", ["feature-first", pytest.param("cache-first", marks=pytest.mark.slow)])
def test_adapters_come_change_and_go(name: str, order: str) -> None:
    pipe, plain = both(name, lora, order, "easycache", threshold=0), CASES[name].build()
    lora(plain)

    def same() -> None:
        assert torch.equal(render(pipe, name), render(plain, name))

    same()
    for change in (
        lambda p: denoiser(p).set_adapters("one", 0.5),
        lambda p: lora(p, "other", 0.3),
        lambda p: denoiser(p).set_adapters(["one", "other"], [0.2, 0.7]),
        lambda p: denoiser(p).disable_adapters(),
        lambda p: denoiser(p).enable_adapters(),
        lambda p: denoiser(p).delete_adapters("one"),
        lambda p: denoiser(p).unload_lora(),
    ):
        for p in (pipe, plain):
            change(p)
        same()
    assert torch.equal(render(pipe, name), reference(name))
    restore(pipe)
    assert torch.equal(render(pipe, name), reference(name))


@pytest.mark.parametrize("order", ["feature-first", "cache-first"])
def test_weights_are_loaded_fused_and_unloaded_by_the_pipeline(order: str, tmp_path: Path) -> None:
    name = "FluxPipeline"
    source = CASES[name].build()
    lora(source)
    layers = get_peft_model_state_dict(source.transformer, adapter_name="one")
    source.save_lora_weights(tmp_path, transformer_lora_layers=layers)
    with_lora = render(source, name)

    def load(pipe: Any) -> None:
        pipe.load_lora_weights(tmp_path, weight_name="pytorch_lora_weights.safetensors", adapter_name="one")

    pipe = both(name, load, order, "easycache", threshold=0)
    loaded = render(pipe, name)
    assert torch.equal(loaded, with_lora)
    pipe.fuse_lora()
    assert torch.allclose(render(pipe, name), loaded, atol=1e-4)
    pipe.unfuse_lora()
    pipe.unload_lora_weights()
    assert torch.allclose(render(pipe, name), reference(name), atol=1e-4)
    restore(pipe)
    assert type(pipe.transformer) is type(source.transformer)


CHANGES: dict[str, Callable[[Any], None]] = {
    "scale": lambda pipe: denoiser(pipe).set_adapters("one", 0.25),
    "off": lambda pipe: denoiser(pipe).disable_adapters(),
    "another": lambda pipe: lora(pipe, "other"),
    "delete": lambda pipe: denoiser(pipe).delete_adapters("one"),
    "unload": lambda pipe: denoiser(pipe).unload_lora(),
}


@each_pipeline
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at", [0, 2])
def test_an_adapter_that_changes_half_way_computes(name: str, change: str, at: int) -> None:
    pipe = accelerated(name, "uniform", interval=6)
    lora(pipe)
    callback = at_step(at, CHANGES[change])
    assert render(pipe, name, callback_on_step_end=callback).isfinite().all()
    told = report(pipe)
    assert told.computed_ticks == [0, at + 1, STEPS - 1]
    assert any("adapters" in reason for reason in told.reasons)


@pytest.mark.parametrize("at", [0, 2])
def test_a_scale_that_is_passed_to_the_call_and_changes_half_way_computes(at: int) -> None:
    name = "FluxPipeline"
    pipe = accelerated(name, "uniform", interval=6)
    lora(pipe)

    def rescale(pipe: Any) -> None:
        pipe._joint_attention_kwargs = {"scale": 0.25}

    callback = at_step(at, rescale)
    render(pipe, name, joint_attention_kwargs={"scale": 1.0}, callback_on_step_end=callback)
    assert report(pipe).computed_ticks == [0, at + 1, STEPS - 1]
