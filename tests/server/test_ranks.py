"""Processes that compute one denoiser together decide alike for each request, by one collective for a batch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

PROGRAM = Path(__file__).with_name("two_ranks.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("no gloo")
    folder = tmp_path_factory.mktemp("ranks")
    subprocess.run([sys.executable, str(PROGRAM), str(folder)], check=True, timeout=300, capture_output=True)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_all_processes_decide_alike(found: list[dict[str, Any]]) -> None:
    first, second = found
    names = [name for name in first if name.startswith("request")]
    assert len(names) == 5
    assert all(first[name] == second[name] for name in names)
    assert first["sums"] == second["sums"]
    assert sum(not all(first[name]) for name in names) >= 3


def test_although_one_has_dropped_what_the_other_keeps(found: list[dict[str, Any]]) -> None:
    assert not found[0]["evictions"]
    assert found[1]["evictions"]


def test_one_collective_for_a_call(found: list[dict[str, Any]]) -> None:
    """Each batch has two calls here: one request has its guidance passes apart."""
    assert [each["votes"] for each in found] == [[2] * 10, [2] * 10]


def test_what_processes_cannot_agree_on_is_refused(found: list[dict[str, Any]]) -> None:
    assert all("whole denoiser" in each["inside"] and "clocks" in each["timeout"] for each in found)
