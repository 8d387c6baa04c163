"""Compiled denoisers at each level: their graphs are those of the plain pipeline, computed ticks run them, reused ticks do not.

`fullgraph=True` everywhere: a break in a graph is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compatibility.levels import LEVELS, Cell, site, slow
from support.compiling import Graphs, in_place, repeated_blocks, wrapped
from support.harness import STEPS, reference, render
from zoo.pipelines import CASES

from diffcache import TargetError, accelerate, report, restore

GROUP = "torch.compile"
NAME = "FluxPipeline"
OTHER_STEPS = 9


Way = Callable[[Any, Graphs], None]
WAYS: dict[str, Way] = {
    "`torch.compile(denoiser, fullgraph=True)`": wrapped,
    "`denoiser.compile(fullgraph=True)`": in_place,
    "`compile_repeated_blocks(fullgraph=True)`": repeated_blocks,
}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(name: str, way: Way, level: str, interval: int, *, cache_first: bool) -> tuple[Any, Graphs]:
    torch._dynamo.reset()
    pipe, graphs = CASES[name].build(), Graphs()
    if not cache_first:
        way(pipe, graphs)
    accelerate(pipe, "uniform", interval=interval, site=site(name, level))
    if cache_first:
        way(pipe, graphs)
    return pipe, graphs


@functools.cache
def plain_compiled(name: str, way: Way) -> Graphs:
    """The graphs of the plain pipeline, and how often they run in one render."""
    torch._dynamo.reset()
    pipe, graphs = CASES[name].build(), Graphs()
    way(pipe, graphs)
    assert torch.equal(render(pipe, name), reference(name))
    return graphs


each_way = pytest.mark.parametrize("way", WAYS)
each_order = pytest.mark.parametrize("cache_first", [False, True], ids=["compile-first", "cache-first"])


def seen(way: str, level: str) -> bool:
    """Whether calls at a level go through Python, where they can be skipped."""
    return level == "whole model" or (WAYS[way] is repeated_blocks and level != "sub-layer")


@pytest.mark.slow
@each_order
@pytest.mark.parametrize(
    ("way", "level"), [(way, level) for way in WAYS for level in LEVELS if seen(way, level)]
)
def test_compiled_code_is_what_runs_and_what_is_skipped(
    way: str, level: str, cache_first: bool, cell: Cell
) -> None:
    name = NAME
    plain = plain_compiled(name, WAYS[way])
    pipe, graphs = compiled(name, WAYS[way], level, 1, cache_first=cache_first)
    assert torch.equal(render(pipe, name), reference(name))
    assert (graphs.compiled, graphs.executed) == (plain.compiled, plain.executed)

    pipe, graphs = compiled(name, WAYS[way], level, 2, cache_first=cache_first)
    image, executed = render(pipe, name), graphs.executed
    assert report(pipe).computed_ticks == [0, 2, 4, STEPS - 1]
    eager = accelerate(CASES[name].build(), "uniform", interval=2, site=site(name, level))
    assert torch.equal(image, render(eager, name))
    assert executed == plain.executed * 4 // STEPS
    render(pipe, name, steps=OTHER_STEPS)
    assert graphs.compiled == plain.compiled, "another number of steps compiles anew"
    assert torch.equal(render(restore(pipe), name), reference(name))
    cell(GROUP, way, level)


@each_order
@pytest.mark.parametrize(
    ("way", "level"), [(way, level) for way in WAYS for level in LEVELS if not seen(way, level)]
)
def test_what_compiled_code_hides_is_refused(way: str, level: str, cache_first: bool, cell: Cell) -> None:
    with pytest.raises(TargetError, match=r"is compiled.*cannot be cached: ") as refusal:
        render(compiled(NAME, WAYS[way], level, 1, cache_first=cache_first)[0], NAME)
    cell(GROUP, way, level, f"no: {refusal.value}")


@pytest.mark.parametrize("method", ["fbcache", slow("easycache")])
def test_an_adaptive_method_decides_outside_the_graphs(method: str) -> None:
    name = "WanPipeline"
    plain = plain_compiled(name, repeated_blocks)
    torch._dynamo.reset()
    pipe, graphs = CASES[name].build(), Graphs()
    repeated_blocks(pipe, graphs)
    accelerate(pipe, method, threshold=0.4)
    image, told = render(pipe, name), report(pipe)
    assert 0 < told.compute_fraction < 1
    assert graphs.compiled == plain.compiled
    eager = accelerate(CASES[name].build(), method, threshold=0.4)
    assert torch.equal(image, render(eager, name))
    assert report(eager).decisions.equal(told.decisions)
