"""Processes that compute one denoiser together decide alike; those that run side by side do not wait for each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from compatibility.levels import Cell
from compatibility.two_processes import FEWER_STEPS, FLUX, METHODS, STEPS, TOGETHER, flux

from diffcache import accelerate, decide_together, report
from diffcache.engine.vote import OUTVOTED
from diffcache.schedulers.errors import TargetError

GROUP = "Several processes"
WAYS = {
    "context_parallel": "context parallel (`enable_parallelism`)",
    "tensor_parallel": "tensor parallel (DTensor)",
    "sharded": "fully sharded (FSDP2)",
    "declared": "declared by `decide_together`",
}
LEVELS = {"model": "whole model", "default": "whole model", "stack": "stack", "sub-layer": "sub-layer"}
MEASURED = {"default", "model", "stack", "each sample"}
RENDERS = ("rendered", "first computes", "second computes")


def each(pairs: list[tuple[str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("way", "method"), pairs, ids=[" ".join(pair) for pair in pairs])


each_together = each(TOGETHER)
each_threshold = each([(way, method) for way, method in TOGETHER if "threshold" in METHODS[method][1]])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two")
    program = Path(__file__).with_name("two_processes.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, program, folder], check=True, timeout=300, env=environment)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@each_together
def test_those_that_compute_together_decide_alike(
    ranks: list[dict[str, Any]], way: str, method: str, cell: Cell
) -> None:
    first, second = (found[f"{way} {method}"] for found in ranks)
    for found in (first, second):
        assert found["exact"]
        assert found["restored"]
    for render in RENDERS:
        assert first[render]["ticks"] == second[render]["ticks"]
        same_picture = first[render]["image"] == second[render]["image"]
        assert same_picture == (way != "sharded")
    assert len(first["rendered"]["ticks"]) < STEPS
    if method in LEVELS:
        cell(GROUP, WAYS[way], LEVELS[method])


@each_threshold
def test_one_that_must_compute_makes_both(ranks: list[dict[str, Any]], way: str, method: str) -> None:
    for found, other in (ranks, ranks[::-1]):
        mine, theirs = found[f"{way} {method}"], other[f"{way} {method}"]
        loud = "first computes" if found is ranks[0] else "second computes"
        assert mine[loud]["ticks"] == list(range(STEPS))
        assert OUTVOTED not in mine[loud]["reasons"]
        assert OUTVOTED in theirs[loud]["reasons"]


@each_together
def test_one_vote_for_each_tick_where_something_is_measured(
    ranks: list[dict[str, Any]], way: str, method: str
) -> None:
    for found in ranks:
        assert found[f"{way} {method}"]["rendered"]["votes"] == (STEPS if method in MEASURED else 0)


def test_inside_a_fully_sharded_denoiser_is_refused(ranks: list[dict[str, Any]], cell: Cell) -> None:
    """Gathering weights writes to memory that outlives a block's call: from outside it looks like what must not be skipped."""
    (why,) = {found["sharded stack"]["refused"] for found in ranks}
    assert "fully sharded (FSDP)" in why
    cell(GROUP, WAYS["sharded"], "stack", f"no: {why}")


def test_side_by_side_each_decides_for_itself(ranks: list[dict[str, Any]], cell: Cell) -> None:
    first, second = (found["side by side"] for found in ranks)
    assert first["ticks"] == list(range(STEPS))
    alone = accelerate(flux(), "easycache", threshold=1e9, warmup_steps=1)
    image = FLUX.render(alone, 1, FEWER_STEPS, num_images_per_prompt=2)
    assert second["ticks"] == report(alone).computed_ticks == [0, 1, FEWER_STEPS - 1]
    assert torch.allclose(torch.tensor(second["image"]), image.flatten())
    assert first["votes"] == second["votes"] == 0
    cell(GROUP, "data parallel", "whole model")


def test_only_a_denoiser_can_be_declared() -> None:
    with pytest.raises(TargetError, match=r"pass pipe\.transformer"):
        decide_together(flux(), None)  # type: ignore[arg-type]
