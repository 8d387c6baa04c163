"""Faults that were found in cache-dit and in Diffusers' own caches: ours does not have them.

Where it is quick, the test runs theirs as well. When a peer mends a fault, its half of the test fails and can be deleted.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from compatibility.levels import Cell
from compatibility.peers import (
    BOTH,
    FAILS,
    FLUX,
    NOT_RUN,
    build,
    first_block,
    hooked,
    mag,
    sharing,
    taylor,
)
from diffusers import FirstBlockCacheConfig, MagCacheConfig
from support.compiling import Graphs
from support.harness import STEPS, accelerated, render
from torch import Tensor, nn

from diffcache import accelerate


def test_a_preview_in_a_callback(fault: Cell) -> None:
    def previewing(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == 2:
            render(sharing(pipe), FLUX, seed=7, steps=2)
        return kwargs

    theirs = hooked(first_block())
    alone = render(theirs, FLUX)
    assert not torch.equal(render(theirs, FLUX, callback_on_step_end=previewing), alone)
    pipe = accelerated(FLUX, interval=3)
    alone = render(pipe, FLUX)
    assert torch.equal(render(pipe, FLUX, callback_on_step_end=previewing), alone)
    fault(BOTH, "a preview in a callback that shares the transformer changes the picture", FAILS)


def test_a_copy_runs_its_own_blocks(fault: Cell) -> None:
    def tripled(net: nn.Module) -> nn.Module:
        other = copy.deepcopy(net)
        for block in [*other.transformer_blocks, *other.single_transformer_blocks]:
            for parameter in block.parameters():
                parameter.data.mul_(3)
        return other

    expected = build()
    expected.transformer = tripled(expected.transformer)
    expected_image = render(expected, FLUX)
    theirs = hooked(MagCacheConfig(num_inference_steps=STEPS, mag_ratios=[1.0] * STEPS, threshold=0.0))
    theirs.transformer = tripled(theirs.transformer)
    assert not torch.equal(render(theirs, FLUX), expected_image)
    pipe = accelerated(FLUX, interval=2)
    other = build()
    other.transformer = tripled(pipe.transformer)
    assert torch.equal(render(other, FLUX), expected_image)
    fault(BOTH, "a deep copy of the transformer runs the original's blocks", FAILS)


def test_a_sample_does_not_depend_on_its_neighbours(fault: Cell) -> None:
    def first(pipe: Any, others: int) -> Tensor:
        generators = [torch.Generator().manual_seed(seed) for seed in range(others + 1)]
        return render(pipe, FLUX, steps=12, num_images_per_prompt=others + 1, generator=generators)[0]

    theirs = [first(hooked(FirstBlockCacheConfig(threshold=0.25)), others) for others in (0, 3)]
    assert not torch.allclose(*theirs, atol=1e-4)
    pipe = accelerated(FLUX, "easycache", threshold=0.5, per_sample=True)
    torch.testing.assert_close(first(pipe, 0), first(pipe, 3), rtol=0, atol=1e-4)
    fault(BOTH, "a picture depends on its neighbours in the batch (here: ask for `per_sample`)", FAILS)


@pytest.mark.slow
def test_the_whole_model_compiles_in_one_graph(fault: Cell) -> None:
    for theirs in (hooked(first_block()), hooked(taylor()), hooked(mag())):
        torch._dynamo.reset()
        theirs.transformer.compile(backend=Graphs(), fullgraph=True)
        with pytest.raises(torch._dynamo.exc.TorchDynamoException):
            render(theirs, FLUX)
    torch._dynamo.reset()
    graphs = Graphs()
    pipe = accelerated(FLUX, interval=2)
    pipe.transformer.compile(backend=graphs, fullgraph=True)
    render(pipe, FLUX)
    assert (graphs.compiled, graphs.executed) == (1, 4)
    torch._dynamo.reset()
    fault(BOTH, "the whole model does not compile in one graph (Diffusers' caches run; cache-dit not)", FAILS)


def test_two_threads_over_one_denoiser(fault: Cell) -> None:
    pipe = accelerated(FLUX, interval=2)
    pipes = [pipe, accelerate(sharing(pipe), "uniform", interval=3)]
    alone = [render(p, FLUX, seed=i) for i, p in enumerate(pipes)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(4):
            images = list(pool.map(lambda i: render(pipes[i], FLUX, seed=i), range(2)))
            assert all(torch.equal(a, b) for a, b in zip(images, alone, strict=True))
    fault(BOTH, "two threads over one transformer: wrong pictures", NOT_RUN)
