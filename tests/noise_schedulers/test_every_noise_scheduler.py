"""Every noise scheduler: ticks are model evaluations, all-compute is exact, equal sigmas add nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import ScoreSdeVePipeline, ScoreSdeVeScheduler
from support.harness import (
    accelerated,
    computed_calls,
    counted,
    plain,
    reference,
    reference_calls,
    render,
)
from support.toys import ToyDenoiser, ToyScheduler, by_embeds, toy_pipeline
from zoo.pipeline_case import model, quiet
from zoo.pipelines import CASES

from diffcache import accelerate, denoising_run, report

STEPS = 8
SD, IMG2IMG = "StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline"
SD3, FLUX, WAN = "StableDiffusion3Pipeline", "FluxPipeline", "WanPipeline"

CASES_WITH_TICKS = [
    (FLUX, "FlowMatchEuler", STEPS),
    (SD3, "FlowMatchHeun", 2 * STEPS - 1),
    (WAN, "FlowMatchEuler", STEPS),
    (WAN, "DPM++", STEPS),
    (WAN, "UniPC", STEPS),
    (SD, "DDIM", STEPS),
    (SD, "Euler", STEPS),
    (SD, "EulerAncestral", STEPS),
    (SD, "DPM++", STEPS),
    (SD, "UniPC", STEPS),
    (SD, "Heun", 2 * STEPS - 1),
    (SD, "KDPM2", 2 * STEPS - 1),
    (SD, "PNDM", 12 + STEPS - 3),
    (SD, "PLMS", STEPS + 1),
    (SD, "LCM", STEPS),
    (IMG2IMG, "DDIM", 5),
    (IMG2IMG, "Heun", 9),
    (IMG2IMG, "PLMS", 6),
    (IMG2IMG, "LCM", 5),
    ("DiTPipeline", "DPM++", STEPS),
    ("StableDiffusionXLPipeline", "Heun", 2 * STEPS - 1),
]
"""Pipeline, noise scheduler, and how many evaluations eight steps take (image-to-image drops the first 30 %)."""

each_case = pytest.mark.parametrize(
    ("name", "noise_scheduler", "ticks"), CASES_WITH_TICKS, ids=["-".join(c[:2]) for c in CASES_WITH_TICKS]
)


def passes(name: str) -> int:
    return 2 if CASES[name].guidance == "two-pass" else 1


@each_case
def test_all_compute_is_exact_and_ticks_are_evaluations(name: str, noise_scheduler: str, ticks: int) -> None:
    pipe = accelerated(name, "easycache", noise_scheduler, threshold=0)
    assert torch.equal(
        render(pipe, name, steps=STEPS), reference(name, steps=STEPS, noise_scheduler=noise_scheduler)
    )
    told = report(pipe)
    assert told.num_ticks == ticks
    assert [record.num_ticks for record in told.records] == [ticks]
    assert len(told.calls) == ticks * passes(name)
    calls = reference_calls(name, steps=STEPS, noise_scheduler=noise_scheduler)
    assert calls.total() == ticks * passes(name)
    assert [call.tick for call in told.calls] == [i // passes(name) for i in range(len(told.calls))]


@each_case
def test_uniform_reuses_every_other_tick(name: str, noise_scheduler: str, ticks: int) -> None:
    pipe = accelerated(name, "uniform", noise_scheduler, interval=2)
    with counted(pipe, CASES[name].denoisers) as calls:
        image = render(pipe, name, steps=STEPS)
    told = report(pipe)
    assert told.computed_ticks == sorted({*range(0, ticks, 2), ticks - 1})
    assert computed_calls(told) == calls
    assert image.isfinite().all()
    assert torch.equal(render(pipe, name, steps=STEPS), image)


@each_case
def test_the_sigmas_are_those_of_the_loop(name: str, noise_scheduler: str, ticks: int) -> None:
    """The report's sigma of each tick is the noise scheduler's own at that evaluation."""
    pipe = accelerated(name, "uniform", noise_scheduler, interval=2)
    seen: list[float] = []
    step = pipe.scheduler.step

    def watching(output: Any, timestep: Any, *args: Any, **kwargs: Any) -> Any:
        result = step(output, timestep, *args, **kwargs)
        s = pipe.scheduler
        if hasattr(s, "sigmas"):
            at = s.step_index - 1
            between = at % 2 == 1 and hasattr(s, "sigmas_interpol")  # KDPM2's second evaluations
            seen.append(float((s.sigmas_interpol if between else s.sigmas)[at]))
        else:
            alpha = s.alphas_cumprod.double()[int(timestep)]
            seen.append(float(((1 - alpha) / alpha).sqrt()))
        return result

    pipe.scheduler.step = watching
    render(pipe, name, steps=STEPS)
    sigmas = report(pipe).records[0].sigmas
    assert sigmas == pytest.approx(seen, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "noise_scheduler", "repeated"),
    [
        (SD, "PLMS", {2}),
        (SD, "PNDM", {2, 4, 6, 8, 10, 12}),
        (SD, "Heun", {2, 4, 6, 8, 10, 12}),
        (SD3, "FlowMatchHeun", {2, 4, 6, 8, 10, 12}),
        (SD, "KDPM2", set()),
        (SD, "DDIM", set()),
        (WAN, "UniPC", set()),
    ],
)
def test_equal_sigmas_never_advance_the_accumulator(
    name: str, noise_scheduler: str, repeated: set[int]
) -> None:
    """With a threshold that any change exceeds, what is reused are the ticks at a repeated sigma."""
    pipe = accelerated(name, "easycache", noise_scheduler, threshold=1e-9, warmup_steps=0)
    render(pipe, name, steps=STEPS)
    told = report(pipe)
    assert set(range(told.num_ticks)) - set(told.computed_ticks) == repeated


@pytest.mark.parametrize("again", [1, 2, 4])
def test_equal_sigmas_in_a_hand_written_loop(again: int) -> None:
    """However far the latent moves, a repeated sigma is reused and the next one pays for its own step only."""
    net = accelerate(ToyDenoiser().eval(), "easycache", threshold=1e-3, warmup_steps=0)
    sigmas = [1.0, 0.9, *[0.8] * (1 + again), 0.7, 0.6]
    x = torch.arange(1.0, 9.0).reshape(1, 2, 4)
    embeds = torch.ones(1, 2, 4)
    with torch.no_grad(), denoising_run(net, len(sigmas), sigmas) as run:
        for i in range(len(sigmas)):
            run.begin_step(i)
            x = x + net(x, torch.ones(1), embeds)[0]
    told = report(net)
    assert [t for t in range(told.num_ticks) if t not in told.computed_ticks] == [*range(3, 3 + again)]


def test_a_loop_that_steps_only_a_copy_computes_everything_and_says_so() -> None:
    call = {"embeds": by_embeds(), "steps_a_copy": True}
    pipe = accelerate(toy_pipeline(), "uniform", interval=2, warmup_steps=0)
    assert torch.equal(pipe(**call), toy_pipeline()(**call))
    told = report(pipe)
    assert told.compute_fraction == 1
    assert len(told.calls) == 16
    assert any("steps not observed" in note for note in told.notes)


def test_a_noise_scheduler_that_steps_by_other_names_is_computed_in_full_and_told() -> None:
    """It has no `step`, but `step_correct` and `step_pred`."""

    def render(pipe: Any) -> Any:
        return pipe(generator=torch.Generator().manual_seed(0), num_inference_steps=6, output_type="np")[0]

    pipe = quiet(ScoreSdeVePipeline(model("UNet2DModel"), ScoreSdeVeScheduler()))
    expected = render(pipe)
    accelerate(pipe, "uniform", interval=2)
    assert (render(pipe) == expected).all()
    assert len(report(pipe).calls) == 12
    assert report(pipe).compute_fraction == 1
    assert any("steps not observed" in note for note in report(pipe).notes)


def test_a_noise_scheduler_that_is_replaced_half_way_is_no_harm() -> None:
    def replacing(pipe: Any, step: int, timestep: Any, kwargs: Any) -> Any:
        if step == 3:
            pipe.scheduler = ToyScheduler()
        return kwargs

    call = {"embeds": by_embeds(), "callback_on_step_end": replacing}
    pipe = accelerate(toy_pipeline(), "uniform", interval=2)
    assert torch.equal(pipe(**call), toy_pipeline()(**call))
    assert torch.equal(pipe(by_embeds()), toy_pipeline()(by_embeds()))
    assert report(pipe).computed_ticks == [0, 2, 4, 6, 7]


def test_several_loops_are_several_runs_of_one_report() -> None:
    call = {"embeds": by_embeds(), "loops": 3}
    pipe = accelerate(toy_pipeline(), "uniform", interval=4)
    assert torch.equal(pipe(**call), toy_pipeline()(**call))
    told = report(pipe)
    assert [run.computed_ticks for run in told.runs] == [[0, 4, 7]] * 3
    assert told.num_ticks == 24
    assert told.computed_ticks == [0, 4, 7, 8, 12, 15, 16, 20, 23]


def test_a_noise_scheduler_is_itself_again_after_a_run() -> None:
    pipe = accelerated(SD, "uniform", "PNDM", interval=2)
    noise_scheduler = pipe.scheduler
    cls, names = type(noise_scheduler), set(vars(plain(SD, "PNDM").scheduler))
    inside: list[type] = []

    def callback(pipe: Any, step: int, timestep: Any, kwargs: Any) -> Any:
        inside.append(type(pipe.scheduler))
        return kwargs

    render(pipe, SD, steps=STEPS, callback_on_step_end=callback)
    reference(SD, steps=STEPS, noise_scheduler="PNDM")
    assert pipe.scheduler is noise_scheduler
    assert type(noise_scheduler) is cls
    assert set(vars(noise_scheduler)) == set(vars(plain(SD, "PNDM").scheduler)) >= names
    assert all(issubclass(seen, cls) and seen.__name__ == cls.__name__ for seen in inside)
