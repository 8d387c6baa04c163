"""What another thread does meanwhile changes nothing: it compiles, ends a call that shares something, or attaches another method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, get_ident
from typing import Any

import pytest
import torch
from support.harness import render
from support.toys import by_embeds, toy_pipeline
from zoo.pipelines import CASES

from diffcache import accelerate, discover, report

FLUX = "FluxPipeline"


@pytest.fixture
def other() -> Iterator[ThreadPoolExecutor]:
    """Another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


class Halted:
    """A point at which one thread waits until another one lets it go on."""

    def __init__(self) -> None:
        self.reached, self.released = Event(), Event()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.reached.set()
        assert self.released.wait(60)


def at_step(step: int, act: Callable[[], Any]) -> Callable[..., dict[str, Any]]:
    """A callback that acts once."""

    def callback(pipe: Any, i: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        if i == step:
            act()
        return tensors

    return callback


def test_a_compilation_does_not_switch_the_cache_off(other: ThreadPoolExecutor) -> None:
    halted = Halted()

    def slow(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        halted()
        return graph.forward

    torch._dynamo.reset()
    compiling = other.submit(torch.compile(lambda x: x.sin(), backend=slow), torch.ones(2))
    assert halted.reached.wait(60)
    try:
        pipe = accelerate(CASES[FLUX].build(), "uniform", interval=2)
        render(pipe, FLUX)
    finally:
        halted.released.set()
        compiling.result()
        torch._dynamo.reset()
    assert report(pipe).computed_ticks == [0, 2, 4, 5]


def test_a_call_that_shares_the_noise_scheduler_may_end_first(other: ThreadPoolExecutor) -> None:
    one, two = (accelerate(toy_pipeline(), "uniform", interval=6) for _ in range(2))
    two.scheduler = one.scheduler
    halted = Halted()
    first = other.submit(lambda: one(by_embeds(), num_inference_steps=24, callback_on_step_end=halted))
    assert halted.reached.wait(60)

    def end_first() -> None:
        halted.released.set()
        first.result()

    def callback(pipe: Any, i: int, time: Any, tensors: Any) -> None:
        if i == 1:
            end_first()

    two(by_embeds(), num_inference_steps=24, callback_on_step_end=callback)
    assert report(two).computed_ticks == [0, 6, 12, 18, 23]
    assert report(two).num_ticks == 24


def test_sites_that_were_being_discovered_stay_watched(other: ThreadPoolExecutor) -> None:
    alone = accelerate(CASES[FLUX].build(), "fora", interval=2)
    picture, told = render(alone, FLUX), report(alone).decisions
    pipe, halted, given = CASES[FLUX].build(), Halted(), dict[str, Any]()
    with pipe.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: given.update(kwargs), with_kwargs=True
    ):
        render(pipe, FLUX, steps=1)
    here = get_ident()
    halt = pipe.transformer.register_forward_pre_hook(lambda *args: halted() if get_ident() != here else None)
    discovering = other.submit(lambda: discover(pipe.transformer, **given))
    assert halted.reached.wait(60)

    def end() -> None:
        halted.released.set()
        discovering.result()

    accelerate(pipe, "fora", interval=2)
    assert torch.equal(render(pipe, FLUX, callback_on_step_end=at_step(1, end)), picture)
    assert report(pipe).decisions.equal(told)
    halt.remove()


def test_another_method_begins_with_the_next_call_only() -> None:
    pipe = accelerate(CASES[FLUX].build(), "fora", interval=2)
    alone = render(pipe, FLUX)
    told = report(pipe).decisions
    change = at_step(1, lambda: accelerate(pipe, "uniform", interval=2))
    image = render(pipe, FLUX, callback_on_step_end=change)
    assert torch.equal(image, alone)
    assert report(pipe).decisions.equal(told)
