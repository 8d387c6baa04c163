"""Guidance passes are told apart, whatever their order and number, and never given each other's features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from diffusers.callbacks import (
    MultiPipelineCallbacks,
    SD3CFGCutoffCallback,
    SDCFGCutoffCallback,
    SDXLCFGCutoffCallback,
)
from support.harness import STEPS, accelerated, reference, render
from support.toys import Passes, by_embeds, by_labels, by_skipped_layers, toy_pipeline
from zoo.pipelines import CASES

from diffcache import accelerate, report
from diffcache.host.rows import BatchedGuidance

BOTH, REVERSED = ("cond", "uncond"), ("uncond", "cond")

LAYOUTS: dict[str, Passes] = {
    "two": lambda step: BOTH,
    "two-reversed": lambda step: REVERSED,
    "one": lambda step: ("cond",),
    "three": lambda step: ("cond", "uncond", "skip"),
    "stops": lambda step: BOTH if step < 4 else ("cond",),
    "stops-reversed": lambda step: REVERSED if step < 4 else ("cond",),
    "begins": lambda step: BOTH if step >= 3 else ("cond",),
    "begins-reversed": lambda step: REVERSED if step >= 3 else ("cond",),
    "interval": lambda step: BOTH if 2 <= step < 6 else ("cond",),
    "interval-reversed": lambda step: REVERSED if 2 <= step < 6 else ("cond",),
    "every-other": lambda step: BOTH if step % 2 else ("cond",),
    "swaps-order": lambda step: BOTH if step % 2 else REVERSED,
    "swaps-order-late": lambda step: BOTH if step < 5 else REVERSED,
    "skips-layers-early": lambda step: ("cond", "uncond", "skip") if step < 3 else BOTH,
    "skips-layers-first": lambda step: ("skip", "cond", "uncond") if 1 <= step < 5 else BOTH,
}
TOLD_APART_BY = {"embeds": by_embeds, "labels": by_labels, "skipped-layers": by_skipped_layers}
METHODS = {
    "uniform-2": ("uniform", {"interval": 2}),
    "uniform-4": ("uniform", {"interval": 4}),
    "easycache": ("easycache", {"threshold": 2.0, "warmup_steps": 0}),
}

COMBINING: dict[str, dict[str, Any]] = {"trajectory": {"speedup": 2}, "fastercache": {}}
"""Methods that ask whether a batch holds both passes."""


def rendered(method: str | None, **call: Any) -> tuple[Any, torch.Tensor]:
    pipe = toy_pipeline()
    if method is not None:
        name, options = METHODS[method]
        accelerate(pipe, name, **options)
    return pipe, pipe(**call)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("contexts", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("told", TOLD_APART_BY)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_pass_gets_the_feature_of_another(layout: str, told: str, contexts: bool, method: str) -> None:
    call = {"embeds": TOLD_APART_BY[told](), "passes": LAYOUTS[layout], "contexts": contexts}
    _, expected = rendered(None, **call)
    pipe, image = rendered(method, **call)
    assert torch.equal(image, expected)
    assert report(pipe).compute_fraction < 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_conditioning_made_anew_at_each_tick(layout: str, method: str) -> None:
    call = {"embeds": by_embeds(), "passes": LAYOUTS[layout], "contexts": False, "remade": True}
    _, expected = rendered(None, **call)
    pipe, image = rendered(method, **call)
    assert torch.equal(image, expected)
    assert report(pipe).compute_fraction < 1


def replaced(embeds: dict[str, Any], marks: dict[str, float]) -> dict[str, Any]:
    return {**embeds, **{name: by_embeds(**marks)[name] for name in marks}}


def written_over(embeds: dict[str, Any], marks: dict[str, float]) -> dict[str, Any]:
    for name, mark in marks.items():
        embeds[name]["encoder_hidden_states"].fill_(mark)
    return embeds


def check_switched(change: Callable[..., Any], marks: dict[str, float], at: int, **call: Any) -> None:
    """The prompts change after step `at`; a cached render must show it from the next step on."""

    def switch(pipe: Any, step: int, timestep: Any, kwargs: Any) -> Any:
        if step == at:
            pipe.embeds = change(pipe.embeds, marks)
        return kwargs

    _, expected = rendered(None, embeds=by_embeds(), callback_on_step_end=switch, **call)
    pipe, image = rendered("uniform-4", embeds=by_embeds(), callback_on_step_end=switch, **call)
    assert torch.equal(image, expected)
    assert report(pipe).compute_fraction < 1


switches = [
    pytest.mark.parametrize(
        "marks", [{"cond": 9.0}, {"cond": -5.0, "uncond": 3.0}], ids=["new", "exchanged"]
    ),
    pytest.mark.parametrize("contexts", [True, False], ids=["named", "unnamed"]),
    pytest.mark.parametrize("at", [0, 1, 4]),
]


def each_switch(test: Any) -> Any:
    for mark in switches:
        test = mark(test)
    return test


@each_switch
def test_a_prompt_switched_in_a_callback_computes(at: int, contexts: bool, marks: dict[str, float]) -> None:
    check_switched(replaced, marks, at, contexts=contexts)


@each_switch
def test_a_prompt_that_is_made_anew_and_then_switched_computes(
    at: int, contexts: bool, marks: dict[str, float]
) -> None:
    check_switched(replaced, marks, at, contexts=contexts, remade=True)


@each_switch
def test_a_prompt_written_over_in_place_computes(at: int, contexts: bool, marks: dict[str, float]) -> None:
    check_switched(written_over, marks, at, contexts=contexts)


@pytest.mark.parametrize("contexts", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("comes", [True, False], ids=["comes", "goes"])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_an_optional_input_that_comes_or_goes_computes(at: int, comes: bool, contexts: bool) -> None:
    label = {"class_labels": torch.tensor([2.0])}

    def switch(pipe: Any, step: int, timestep: Any, kwargs: Any) -> Any:
        if step == at:
            pipe.embeds = with_label if comes else embeds
        return kwargs

    embeds = by_embeds()
    with_label = {name: {**given, **label} for name, given in embeds.items()}
    call = {"embeds": embeds if comes else with_label, "contexts": contexts, "callback_on_step_end": switch}
    _, expected = rendered(None, **call)
    pipe, image = rendered("uniform-4", **call)
    assert torch.equal(image, expected)
    assert report(pipe).compute_fraction < 1


@pytest.mark.parametrize("method", ["uniform-2", "uniform-4"])
def test_batched_and_two_pass_decide_alike(method: str) -> None:
    two, apart = rendered(method, embeds=by_embeds())
    one, together = rendered(method, embeds=by_embeds(), batched=True)
    assert torch.equal(apart, together)
    assert report(two).branches == ["cond", "uncond"]
    assert len(report(one).branches) == 1
    assert report(two).computed_ticks == report(one).computed_ticks
    assert report(two).compute_fraction == report(one).compute_fraction < 1


@pytest.mark.parametrize("name", ["WanPipeline", "FluxPipeline-true-cfg", "WanModularPipeline"])
def test_followers_obey_the_leading_branch(name: str) -> None:
    pipe = accelerated(name, "easycache", threshold=0.3, warmup_steps=0)
    render(pipe, name, steps=10)
    decisions = report(pipe).decisions
    assert 0 < report(pipe).compute_fraction < 1
    assert decisions.shape[1] == 2
    assert torch.equal(decisions[:, 0], decisions[:, 1])


@pytest.mark.parametrize(
    ("order", "computed"), [(BOTH, [0, 1, 3, 7]), (REVERSED, [0, 1, 7])], ids=["cond-leads", "uncond-leads"]
)
def test_followers_obey_where_they_would_decide_otherwise(order: Sequence[str], computed: list[int]) -> None:
    """The output of one pass is a hundred times that of the other, so its own relative changes are small."""
    call = {"embeds": by_embeds(uncond=512.0), "passes": lambda step: order}
    _, expected = rendered(None, **call)
    pipe, image = rendered("easycache", **call)
    decisions = report(pipe).decisions
    assert torch.equal(image, expected)
    assert torch.equal(decisions[:, 0], decisions[:, 1])
    assert report(pipe).computed_ticks == computed


@pytest.mark.parametrize(
    ("name", "overrides", "branches"),
    [
        ("WanPipeline", {}, ["cond", "uncond"]),
        ("WanPipeline", {"guidance_scale": 1.0}, ["cond"]),
        ("WanPipeline-two-experts", {}, ["cond", "uncond"]),
        ("FluxPipeline", {}, ["cond"]),
        ("FluxPipeline-true-cfg", {}, ["cond", "uncond"]),
        ("FluxPipeline-true-cfg", {"true_cfg_scale": 1.0}, ["cond"]),
        ("StableDiffusionPipeline", {}, ["0"]),
        ("StableDiffusionPipeline", {"guidance_scale": 1.0}, ["0"]),
        ("StableDiffusion3Pipeline", {}, ["0"]),
        ("DiTPipeline", {}, ["0"]),
    ],
)
def test_branches_have_the_names_that_the_pipeline_gives(
    name: str, overrides: dict[str, Any], branches: list[str]
) -> None:
    pipe = accelerated(name, "uniform", interval=2)
    render(pipe, name, **overrides)
    told = report(pipe)
    assert told.branches == branches
    assert told.called.any(dim=2).all()
    assert told.compute_fraction < 1


def unguided_from(step_of_change: int, scale: float) -> Callable[..., Any]:
    def callback(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == step_of_change:
            pipe._guidance_scale = scale
            if "unet" in pipe.components:
                kwargs["prompt_embeds"] = kwargs["prompt_embeds"].chunk(2)[-1]
        return kwargs

    return callback


@pytest.mark.parametrize("name", ["WanPipeline", "StableDiffusionPipeline"])
@pytest.mark.parametrize("at", range(STEPS - 1))
def test_guidance_that_stops_half_way(name: str, at: int) -> None:
    call: dict[str, Any] = {"callback_on_step_end": unguided_from(at, 1.0)}
    call["callback_on_step_end_tensor_inputs"] = ["latents", "prompt_embeds"]
    expected = CASES[name].render(CASES[name].build(), 0, STEPS, **call)
    exact = accelerated(name, "easycache", threshold=0)
    assert torch.equal(render(exact, name, **call), expected)

    pipe = accelerated(name, "uniform", interval=2)
    assert render(pipe, name, **call).isfinite().all()
    told = report(pipe)
    if name == "StableDiffusionPipeline":  # one call: what is stored has another batch size
        assert at + 1 in told.computed_ticks
    else:
        assert told.called[:, :, 0].sum(dim=1).tolist() == [2] * (at + 1) + [1] * (STEPS - 1 - at)
    assert not torch.equal(render(pipe, name), expected)
    assert torch.equal(render(pipe, name), render(accelerated(name, "uniform", interval=2), name))


@pytest.mark.parametrize(
    ("name", "cutoff"),
    [
        ("StableDiffusionPipeline", SDCFGCutoffCallback),
        ("StableDiffusionXLPipeline", SDXLCFGCutoffCallback),
        ("StableDiffusion3Pipeline", SD3CFGCutoffCallback),
    ],
)
def test_diffusers_own_callbacks_keep_what_they_ask_for(name: str, cutoff: type) -> None:
    """Those that end guidance ask the pipeline for other tensors than a plain function gets."""
    call = {"callback_on_step_end": MultiPipelineCallbacks([cutoff(cutoff_step_ratio=0.4)])}
    expected = CASES[name].render(CASES[name].build(), 0, 10, **call)
    exact = accelerated(name, "easycache", threshold=0)
    assert torch.equal(render(exact, name, steps=10, **call), expected)
    pipe = accelerated(name, "uniform", interval=10)
    render(pipe, name, steps=10, **call)
    assert report(pipe).computed_ticks == [0, 5, 9]
    plain = CASES[name].render(CASES[name].build(), 0, 24, **call)
    for method, options in COMBINING.items():
        pipe = accelerated(name, method, **options)
        assert render(pipe, name, steps=24, **call).sub(plain).norm() < 0.1 * plain.norm()
        assert report(pipe).compute_fraction < 1


@pytest.mark.parametrize("method", COMBINING)
def test_two_pictures_are_not_taken_for_guidance_where_that_ends(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, doubled = "StableDiffusionPipeline", dict[int, bool]()
    found_in = BatchedGuidance.found_in

    def noted(batched: BatchedGuidance, denoiser: Any, call: Any, tick: int, context: str | None) -> bool:
        return doubled.setdefault(tick, found_in(batched, denoiser, call, tick, context))

    monkeypatch.setattr(BatchedGuidance, "found_in", noted)
    call: dict[str, Any] = {"num_images_per_prompt": 2, "callback_on_step_end": unguided_from(4, 1.0)}
    call["callback_on_step_end_tensor_inputs"] = ["latents", "prompt_embeds"]
    render(accelerated(name, method, **COMBINING[method]), name, steps=10, **call)
    assert {tick for tick, found in doubled.items() if found} == {tick for tick in doubled if tick <= 4}
    assert max(doubled) > 4


def test_skip_layer_guidance_is_a_branch_of_its_own() -> None:
    name = "StableDiffusion3Pipeline"
    window = {"skip_guidance_layers": [1], "skip_layer_guidance_start": 0.2, "skip_layer_guidance_stop": 0.8}
    exact = accelerated(name, "easycache", threshold=0)
    expected = CASES[name].render(CASES[name].build(), 0, 10, **window)
    assert torch.equal(render(exact, name, steps=10, **window), expected)
    assert not torch.equal(expected, reference(name, steps=10))
    assert report(exact).branches == ["0", "1"]
    late = report(exact).called[:, 1, 0].nonzero().flatten().tolist()
    pipe = accelerated(name, "uniform", interval=2)
    assert render(pipe, name, steps=10, **window).isfinite().all()
    assert late
    assert report(pipe).decisions[late[0], 1, 0]  # nothing was stored of it before
    assert report(pipe).branches == ["0", "1"]
