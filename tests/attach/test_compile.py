"""Compiled denoisers: the compiled code is what runs, it is as it would be without a cache, and it is reused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.compiling import Graphs, in_place, repeated_blocks, wrapped
from support.harness import STEPS, part, reference, reference_calls, render
from zoo.pipelines import CASES

from diffcache import accelerate, denoising_run, report, restore

pytestmark = pytest.mark.slow

NAMES = ["WanPipeline", "FluxPipeline"]
WAYS = [wrapped, in_place, repeated_blocks]
each_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
each_pipeline = pytest.mark.parametrize("name", NAMES)
each_order = pytest.mark.parametrize("order", ["compile-first", "cache-first"])


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plain_compiled(name: str, way: Callable[[Any, Graphs], None]) -> Graphs:
    """What compiling does to the plain pipeline: its graphs after two renders, and executions in each."""
    pipe, graphs = CASES[name].build(), Graphs()
    way(pipe, graphs)
    assert torch.equal(render(pipe, name), reference(name))
    assert torch.equal(render(pipe, name, seed=1), reference(name, seed=1))
    graphs.executed //= 2
    torch._dynamo.reset()
    return graphs


def compiled(
    name: str, way: Callable[[Any, Graphs], None], order: str, method: str, **options: Any
) -> tuple[Any, Graphs]:
    pipe, graphs = CASES[name].build(), Graphs()
    if order == "compile-first":
        way(pipe, graphs)
    accelerate(pipe, method, **options)
    if order == "cache-first":
        way(pipe, graphs)
    return pipe, graphs


@each_way
@each_pipeline
@each_order
def test_all_compute_compiles_and_runs_what_the_plain_pipeline_does(
    name: str, way: Callable[[Any, Graphs], None], order: str
) -> None:
    plain = plain_compiled(name, way)
    pipe, graphs = compiled(name, way, order, "easycache", threshold=0)
    for run, seed in enumerate((0, 1), start=1):
        assert torch.equal(render(pipe, name, seed=seed), reference(name, seed=seed))
        assert graphs.executed == run * plain.executed
        assert graphs.compiled == plain.compiled
    assert report(pipe).compute_fraction == 1
    assert len(report(pipe).calls) == reference_calls(name).total()


@each_way
@each_pipeline
@each_order
def test_reuse_skips_the_compiled_code(name: str, way: Callable[[Any, Graphs], None], order: str) -> None:
    plain = plain_compiled(name, way)
    per_call = plain.executed // reference_calls(name).total()
    eager = render(accelerate(CASES[name].build(), "uniform", interval=2), name)
    pipe, graphs = compiled(name, way, order, "uniform", interval=2)
    for run in (1, 2):
        assert torch.equal(render(pipe, name), eager)
        assert report(pipe).computed_ticks == [0, 2, 4, STEPS - 1]
        assert report(pipe).branches == (["cond", "uncond"] if name == "WanPipeline" else ["cond"])
        computed = sum(call.computed for call in report(pipe).calls)
        assert graphs.executed == run * per_call * computed
    assert graphs.compiled == plain.compiled


@each_way
@each_order
def test_restored_it_still_runs_compiled(way: Callable[[Any, Graphs], None], order: str) -> None:
    name = "WanPipeline"
    plain = plain_compiled(name, way)
    pipe, graphs = compiled(name, way, order, "uniform", interval=2)
    render(pipe, name)
    restore(pipe)
    graphs.executed = 0
    assert torch.equal(render(pipe, name), reference(name))
    assert graphs.executed == plain.executed


@each_way
def test_a_cache_that_comes_and_goes_compiles_once_more_at_most(way: Callable[[Any, Graphs], None]) -> None:
    """What was compiled before `accelerate` guards on the denoiser's class; both versions stay compiled."""
    name = "WanPipeline"
    pipe, graphs = CASES[name].build(), Graphs()
    way(pipe, graphs)
    render(pipe, name)
    before = graphs.compiled
    for _ in range(2):
        accelerate(pipe, "easycache", threshold=0)
        assert torch.equal(render(pipe, name), reference(name))
        assert graphs.compiled <= before + 1
        restore(pipe)
        assert torch.equal(render(pipe, name), reference(name))
        assert graphs.compiled <= before + 1


@each_order
def test_a_hand_written_loop_over_a_compiled_denoiser(order: str) -> None:
    plain, graphs = CASES["WanPipeline"].build().transformer, Graphs()
    net = CASES["WanPipeline"].build().transformer
    if order == "compile-first":
        net = torch.compile(net, backend=graphs, fullgraph=True)
    accelerate(net, "uniform", interval=2)
    if order == "cache-first":
        net = torch.compile(net, backend=graphs, fullgraph=True)
    embeds = CASES["WanPipeline"].call(0, 1)["prompt_embeds"]
    x = torch.randn(1, 16, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), denoising_run(net, STEPS) as run:
        for i in range(STEPS):
            run.begin_step(i)
            output = net(x, torch.tensor([900.0 - i]), embeds, return_dict=False)[0]
            if i % 2 == 0:
                expected = plain(x, torch.tensor([900.0 - i]), embeds, return_dict=False)[0]
                assert torch.equal(output, expected)
            x = x + output / 8
    assert report(net).computed_ticks == [0, 2, 4, STEPS - 1]
    assert graphs.executed == 4


@pytest.mark.parametrize(
    "replacement", [torch.compile, lambda module, **options: module], ids=["compiled", "eager"]
)
def test_a_denoiser_compiled_between_runs_is_followed(replacement: Callable[..., Any]) -> None:
    """`torch.compile` gives another object; going back to the eager one works too."""
    name = "WanPipeline"
    pipe, graphs = CASES[name].build(), Graphs()
    eager = part(pipe, "transformer")
    accelerate(pipe, "uniform", interval=2)
    image = render(pipe, name)
    wrapped(pipe, graphs)
    assert torch.equal(render(pipe, name), image)
    assert graphs.executed == 8
    pipe.transformer = replacement(eager, backend=graphs)
    assert torch.equal(render(pipe, name), image)
    restore(pipe)
    assert torch.equal(render(pipe, name), reference(name))
    assert type(eager) is type(CASES[name].build().transformer)


@pytest.mark.skipif(shutil.which("c++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize(
    ("method", "options"),
    [("uniform", {"interval": 2, "site": "block"}), ("fbcache", {"threshold": 0.3})],
    ids=str,
)
@each_pipeline
def test_blocks_that_inductor_compiled_are_reused_as_eager_ones_are(
    name: str, method: str, options: dict[str, Any]
) -> None:
    found = []
    for compiles in (False, True):
        pipe: Any = CASES[name].build()
        if compiles:
            pipe.transformer.compile_repeated_blocks()
        found.append(render(accelerate(pipe, method, **options), name))
        found.append(torch.tensor(report(pipe).computed_ticks))
    torch.testing.assert_close(found[2], found[0], rtol=1e-4, atol=1e-4)
    assert torch.equal(found[3], found[1])
