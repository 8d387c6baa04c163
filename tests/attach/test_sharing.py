"""Pipelines that share a denoiser, previews inside callbacks and threads do not disturb each other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from support.harness import accelerated, counted, plain, reference, render
from support.toys import by_embeds, toy_pipeline
from torch import Tensor
from zoo.pipelines import CASES

from diffcache import TargetError, accelerate, paused, report, restore

NAMES = ["WanPipeline", "StableDiffusionPipeline", "FluxPipeline-true-cfg"]


def sibling(pipe: Any, name: str) -> Any:
    """Another plain pipeline over the same denoiser."""
    other = CASES[name].build()
    for denoiser in CASES[name].denoisers:
        setattr(other, denoiser, pipe.components[denoiser])
    return other


def solo(name: str, method: str, seed: int = 0, **options: Any) -> Tensor:
    return render(accelerated(name, method, **options), name, seed=seed)


@pytest.mark.parametrize("name", NAMES)
def test_two_accelerated_pipelines_over_one_denoiser(name: str) -> None:
    one = accelerated(name, "uniform", interval=2)
    two = accelerate(sibling(one, name), "uniform", interval=3)
    for _ in range(2):
        assert torch.equal(render(one, name), solo(name, "uniform", interval=2))
        assert torch.equal(render(two, name, seed=1), solo(name, "uniform", seed=1, interval=3))
    assert report(one).computed_ticks == [0, 2, 4, 5]
    assert report(two).computed_ticks == [0, 3, 5]
    restore(one)
    assert torch.equal(render(one, name), reference(name))
    assert torch.equal(render(two, name, seed=1), solo(name, "uniform", seed=1, interval=3))
    restore(two)
    assert torch.equal(render(two, name), reference(name))
    denoiser = CASES[name].denoisers[0]
    assert type(one.components[denoiser]) is type(plain(name).components[denoiser])


@pytest.mark.parametrize("name", NAMES)
def test_an_unaccelerated_sibling_is_plain(name: str) -> None:
    pipe = accelerated(name, "uniform", interval=2)
    image = render(pipe, name)
    told = report(pipe).decisions
    other = sibling(pipe, name)
    assert torch.equal(render(other, name, seed=1), reference(name, seed=1))
    assert report(pipe).decisions.equal(told)
    with pytest.raises(TargetError):
        report(other)
    assert torch.equal(render(pipe, name), image)


def test_what_is_logged_of_a_plain_sibling_does_not_read_as_a_mistake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipe = accelerate(toy_pipeline(), "uniform", interval=2)
    sibling = toy_pipeline(pipe.transformer)
    with caplog.at_level(logging.WARNING, logger="diffcache"):
        for _ in range(2):
            sibling(by_embeds())
    (record,) = caplog.records
    assert record.message == (
        "ToyDenoiser computes in full outside accelerated pipelines and denoising_run: to reuse there as well, accelerate "
        "the pipeline that calls it, or put your own loop into denoising_run."
    )


def previews(preview: Callable[[], Tensor], into: list[Tensor]) -> Callable[..., Any]:
    """A callback that renders another picture after some steps."""

    def callback(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step in (0, 1, 3):
            into.append(preview())
        return kwargs

    return callback


@pytest.mark.parametrize("accelerate_preview", [True, False], ids=["accelerated", "plain"])
@pytest.mark.parametrize("accelerate_outer", [True, False], ids=["in-accelerated", "in-plain"])
@pytest.mark.parametrize("name", NAMES)
def test_a_preview_in_a_callback(name: str, accelerate_outer: bool, accelerate_preview: bool) -> None:
    outer = CASES[name].build()
    inner = sibling(outer, name)
    expected, expected_preview = reference(name), reference(name, seed=1)
    if accelerate_outer:
        accelerate(outer, "uniform", interval=2)
        expected = solo(name, "uniform", interval=2)
    if accelerate_preview:
        accelerate(inner, "uniform", interval=3)
        expected_preview = solo(name, "uniform", seed=1, interval=3)
    seen: list[Tensor] = []
    callback = previews(lambda: render(inner, name, seed=1), seen)
    assert torch.equal(render(outer, name, callback_on_step_end=callback), expected)
    assert len(seen) == 3
    assert all(torch.equal(preview, expected_preview) for preview in seen)
    if accelerate_outer:
        assert report(outer).computed_ticks == [0, 2, 4, 5]
    if accelerate_preview:
        assert report(inner).computed_ticks == [0, 3, 5]


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_the_denoiser_called_in_a_callback_computes(at: int) -> None:
    """The same arguments as the run's own call, from outside of it: nothing is stored or reused."""
    name = "WanPipeline"
    pipe = accelerated(name, "uniform", interval=2)
    given: list[Any] = []
    handle = pipe.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(kwargs), with_kwargs=True
    )
    outputs: list[Tensor] = []

    def callback(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == at:
            with torch.no_grad():
                outputs.append(pipe.transformer(**given[0])[0])
        return kwargs

    image = render(pipe, name, callback_on_step_end=callback)
    handle.remove()
    with torch.no_grad():
        assert torch.equal(outputs[0], plain(name).transformer(**given[0])[0])
    assert torch.equal(image, solo(name, "uniform", interval=2))


def test_pausing_a_preview_pauses_nothing_else() -> None:
    name = "WanPipeline"
    outer = accelerated(name, "uniform", interval=2)
    inner = accelerate(sibling(outer, name), "uniform", interval=3)
    seen: list[Tensor] = []

    def preview() -> Tensor:
        with paused(inner):
            return render(inner, name, seed=1)

    image = render(outer, name, callback_on_step_end=previews(preview, seen))
    assert torch.equal(image, solo(name, "uniform", interval=2))
    assert all(torch.equal(preview, reference(name, seed=1)) for preview in seen)


# -- threads ------------------------------------------------------------------------------------------------------


class Lockstep:
    """Callbacks that make two renders in two threads take turns, step by step."""

    def __init__(self, parties: int = 2) -> None:
        self.barrier = threading.Barrier(parties, timeout=60)

    def __call__(self, pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        self.barrier.wait()
        return kwargs


def in_threads(*jobs: Callable[[], Tensor]) -> list[Tensor]:
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]


@pytest.mark.parametrize("name", NAMES)
def test_two_threads_equal_their_solo_runs(name: str) -> None:
    one = accelerated(name, "uniform", interval=2)
    two = accelerate(sibling(one, name), "easycache", threshold=0.4, warmup_steps=0)
    expected = (
        solo(name, "uniform", interval=2),
        solo(name, "easycache", seed=1, threshold=0.4, warmup_steps=0),
    )
    for _ in range(3):
        step = Lockstep()
        images = in_threads(
            lambda step=step: render(one, name, callback_on_step_end=step),
            lambda step=step: render(two, name, seed=1, callback_on_step_end=step),
        )
        assert all(torch.equal(image, solo_image) for image, solo_image in zip(images, expected, strict=True))


def test_a_plain_pipeline_in_another_thread_is_plain() -> None:
    name = "WanPipeline"
    one = accelerated(name, "uniform", interval=2)
    two = sibling(one, name)
    step = Lockstep()
    images = in_threads(
        lambda: render(one, name, callback_on_step_end=step),
        lambda: render(two, name, seed=1, callback_on_step_end=step),
    )
    assert torch.equal(images[0], solo(name, "uniform", interval=2))
    assert torch.equal(images[1], reference(name, seed=1))


def test_a_pause_holds_in_its_own_thread() -> None:
    name = "WanPipeline"
    one = accelerated(name, "uniform", interval=2)
    two = accelerate(sibling(one, name), "uniform", interval=2)
    step = Lockstep()

    def pausing() -> Tensor:
        with paused(one), paused(two):
            return render(one, name, callback_on_step_end=step)

    images = in_threads(pausing, lambda: render(two, name, callback_on_step_end=step))
    assert torch.equal(images[0], reference(name))
    assert torch.equal(images[1], solo(name, "uniform", interval=2))


@pytest.mark.parametrize("change", [restore, lambda pipe: accelerate(pipe, "uniform", interval=5)])
def test_changing_one_pipeline_while_another_runs(change: Callable[[Any], Any]) -> None:
    name = "WanPipeline"
    one = accelerated(name, "uniform", interval=2)
    two = accelerate(sibling(one, name), "uniform", interval=3)

    def changing(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == 2:
            in_threads(lambda: change(two))
        return kwargs

    assert torch.equal(render(one, name, callback_on_step_end=changing), solo(name, "uniform", interval=2))
    with counted(one, ("transformer",)) as calls:
        assert torch.equal(render(one, name), solo(name, "uniform", interval=2))
    assert calls["transformer"] == 8


def test_toys_in_threads_never_exchange_features() -> None:
    """In exact arithmetic, four threads over one denoiser, each with prompts of its own."""
    first = accelerate(toy_pipeline(), "uniform", interval=4)
    pipes = [first, *(accelerate(toy_pipeline(first.transformer), "uniform", interval=4) for _ in range(3))]
    step = Lockstep(4)

    def job(i: int) -> Callable[[], Tensor]:
        return lambda: pipes[i](by_embeds(cond=4.0 * i, uncond=-8.0 * i), callback_on_step_end=step)

    images = in_threads(*map(job, range(4)))
    for i, image in enumerate(images):
        assert torch.equal(image, toy_pipeline()(by_embeds(cond=4.0 * i, uncond=-8.0 * i)))
        assert report(pipes[i]).computed_ticks == [0, 4, 7]
