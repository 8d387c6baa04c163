"""A cache works on pipelines with hand-overs, edits, variations and several streams, not only on one loop from text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compatibility.levels import EVERY_SECOND, Cell, each_level, site, verdict
from diffusers import (
    StableDiffusionControlNetPipeline,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionXLImg2ImgPipeline,
)
from support.harness import STEPS, accelerated, counted, plain, reference, render
from torch import Tensor
from zoo.image_pipelines import BOTH_POOLED, PROMPTS, TWO_TEXTS
from zoo.pipeline_case import noise, quiet
from zoo.pipelines import CASES

from diffcache import accelerate, report, restore
from diffcache.schedulers.signals import SecantGain

GROUP = "Pipelines"


def unchanged(pipe: Any) -> None:
    """No feature but the pipeline itself."""


# -- every level on pipelines that differ in their loop ------------------------------------------------------------

ONE_LOOP = {
    "modular (Flux)": "FluxModularPipeline",
    "modular, with a guider (Wan)": "WanModularPipeline",
    "editing (Flux Kontext)": "FluxKontextPipeline",
    "video and audio (LTX 2)": "LTX2Pipeline",
    "ControlNet (Stable Diffusion)": "StableDiffusionControlNetPipeline",
}


@each_level
@pytest.mark.parametrize("kind", ONE_LOOP)
def test_one_loop(kind: str, level: str, cell: Cell) -> None:
    assert verdict(ONE_LOOP[kind], unchanged, level, EVERY_SECOND) == "works"
    cell(GROUP, kind, level)


SHORTENED = {
    "image to image (Flux)": "FluxImg2ImgPipeline",
    "inpainting (Flux)": "FluxInpaintPipeline",
    "image to image (Stable Diffusion)": "StableDiffusionImg2ImgPipeline",
    "inpainting (Stable Diffusion)": "StableDiffusionInpaintPipeline",
}


@each_level
@pytest.mark.parametrize("kind", SHORTENED)
def test_a_loop_that_starts_half_way(kind: str, level: str, cell: Cell) -> None:
    """Warm-up and tail are those of the loop that is run, not of the number of steps asked for."""
    name = SHORTENED[kind]
    expected = render(plain(name), name, steps=10, strength=0.6)
    pipe = accelerated(name, "uniform", interval=1, site=site(name, level))
    assert torch.equal(render(pipe, name, steps=10, strength=0.6), expected)
    accelerate(pipe, "uniform", interval=2, site=site(name, level))
    render(pipe, name, steps=10, strength=0.6)
    assert report(pipe).computed_ticks == [0, 2, 4, 5]
    assert torch.equal(render(restore(pipe), name, steps=10, strength=0.6), expected)
    cell(GROUP, kind, level)


# -- two denoisers, two pipelines ----------------------------------------------------------------------------------


@each_level
def test_two_experts(level: str, cell: Cell) -> None:
    """Each has its own store; the hand-over computes, because the second has nothing stored."""
    name = "WanPipeline-two-experts"
    assert torch.equal(
        render(accelerated(name, "uniform", interval=1, site=site(name, level)), name, steps=10),
        reference(name, steps=10),
    )
    pipe = accelerated(name, "uniform", interval=2, site=site(name, level))
    with counted(pipe, CASES[name].denoisers) as calls:
        render(pipe, name, steps=10)
    told = report(pipe)
    assert 0 < told.compute_fraction < 1
    first_of_second = min(call.tick for call in told.calls if call.site.startswith("transformer_2"))
    assert 0 < first_of_second < 9
    assert first_of_second in told.computed_ticks
    if level == "whole model":
        assert calls.total() == sum(call.computed > 0 for call in told.calls)
    cell(GROUP, "two experts (Wan 2.2)", level)


def base_and_refiner() -> tuple[Any, Any]:
    base = CASES["StableDiffusionXLPipeline"].build()
    parts = {"vae": base.vae, "unet": CASES["StableDiffusionXLPipeline"].build().unet}
    return base, quiet(StableDiffusionXLImg2ImgPipeline(**parts, scheduler=base.scheduler, **TWO_TEXTS))


def handed_over(base: Any, refiner: Any) -> Tensor:
    call = {**PROMPTS, **BOTH_POOLED, "num_inference_steps": 10, "output_type": "latent"}
    latents = base(
        **call, height=16, width=16, denoising_end=0.6, generator=torch.Generator().manual_seed(0)
    ).images
    return refiner(
        **call, image=latents, denoising_start=0.6, generator=torch.Generator().manual_seed(1)
    ).images


@each_level
def test_the_hand_over_to_a_refiner(level: str, cell: Cell) -> None:
    """Two pipelines share one trajectory: each has its own run, warm-up and tail."""
    expected = handed_over(*base_and_refiner())
    where = site("StableDiffusionXLPipeline", level)
    base, refiner = (accelerate(pipe, "uniform", interval=1, site=where) for pipe in base_and_refiner())
    assert torch.equal(handed_over(base, refiner), expected)
    for pipe in (base, refiner):
        accelerate(pipe, "uniform", interval=2, site=where)
    image = handed_over(base, refiner)
    assert image.isfinite().all()
    assert not torch.equal(image, expected)
    assert (report(base).computed_ticks, report(refiner).computed_ticks) == ([0, 2, 4, 5], [0, 2, 3])
    assert torch.equal(handed_over(restore(base), restore(refiner)), expected)
    cell(GROUP, "SDXL and its refiner", level)


FROM_PIPE: dict[str, tuple[type, str]] = {
    "image to image": (StableDiffusionImg2ImgPipeline, "StableDiffusionImg2ImgPipeline"),
    "inpainting": (StableDiffusionInpaintPipeline, "StableDiffusionInpaintPipeline"),
    "ControlNet": (StableDiffusionControlNetPipeline, "StableDiffusionControlNetPipeline"),
}


def made_from(pipe: Any, kind: str) -> Any:
    cls, name = FROM_PIPE[kind]
    extra = {"controlnet": CASES[name].build().controlnet} if kind == "ControlNet" else {}
    return quiet(cls.from_pipe(pipe, **extra))


@each_level
@pytest.mark.parametrize("kind", FROM_PIPE)
def test_from_pipe(kind: str, level: str, cell: Cell) -> None:
    """The new pipeline shares the denoiser, is not accelerated until asked, and then has a method and a report of its own."""
    source, (_, name) = "StableDiffusionPipeline", FROM_PIPE[kind]
    expected = render(made_from(plain(source), kind), name)
    pipe = accelerated(source, "uniform", interval=2, site=site(source, level))
    reused = render(pipe, source)
    other = made_from(pipe, kind)
    assert other.unet is pipe.unet
    assert torch.equal(render(other, name), expected)
    accelerate(other, "uniform", interval=3, site=site(name, level))
    assert not torch.equal(render(other, name), expected)
    assert torch.equal(render(pipe, source), reused)
    assert report(pipe).computed_ticks == [0, 2, 4, 5]
    assert torch.equal(render(restore(other), name), expected)
    assert torch.equal(render(pipe, source), reused)
    assert torch.equal(render(restore(pipe), source), reference(source))
    cell(GROUP, f"`from_pipe` ({kind})", level)


# -- what signals look at ------------------------------------------------------------------------------------------


def test_editing_is_measured_on_the_generated_tokens_only(cell: Cell) -> None:
    """Tokens of given pictures stand still: a signal is the same with them and without them."""

    def signals(given: int) -> list[float]:
        signal, found = SecantGain(), []
        for tick in range(4):
            x = torch.cat([noise(1, 8, 4, seed=tick), noise(1, given, 4, seed=90)], 1)
            v = torch.cat([noise(1, 8, 4, seed=10 + tick), 50 * noise(1, given, 4, seed=20 + tick)], 1)
            if (measured := signal.measure([x])) is not None:
                found.append(measured.item())
            signal.arrived([x])
            signal.computed([x], [v])
        return found

    assert len(signals(0)) == 2
    assert signals(24) == pytest.approx(signals(0))
    pipe = accelerated("FluxKontextPipeline", "easycache", threshold=0.5)
    render(pipe, "FluxKontextPipeline")
    assert 0 < report(pipe).compute_fraction < 1
    cell(GROUP, "editing: EasyCache measures the generated tokens only", "whole model")


@pytest.mark.parametrize("stream", [0, 1], ids=["video", "audio"])
def test_the_union_of_the_streams_decides(stream: int, monkeypatch: pytest.MonkeyPatch, cell: Cell) -> None:
    name, measure = "LTX2Pipeline", SecantGain.measure
    pipe = accelerated(name, "easycache", threshold=0.5, warmup_steps=2)
    streams = set()

    def loud(self: SecantGain, latents: Any) -> Tensor | None:
        value = measure(self, latents)
        if value is None:
            return None
        streams.add(len(value))
        return torch.zeros_like(value).index_fill(0, torch.tensor([stream]), 1.0)

    monkeypatch.setattr(SecantGain, "measure", loud)
    assert torch.equal(render(pipe, name), reference(name))
    assert report(pipe).computed_ticks == list(range(STEPS))
    assert streams == {2}
    cell(GROUP, "video and audio: one stream that moves computes both", "whole model")
