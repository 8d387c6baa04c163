"""Functions that compare with full runs set aside what is attached to the pipeline, and attach it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diffcache import UniformConfig, accelerate, compare, demo, report
from diffcache.evals.testbeds import zoo


def call() -> dict[str, Any]:
    return zoo.sample_call("flux", 0, 6, 1)


@pytest.fixture
def pipe() -> Any:
    """Accelerated, and called once."""
    pipe = accelerate(zoo.load("flux"), "uniform", interval=3)
    pipe(**call())
    return pipe


def test_compare_measures_against_full_runs(pipe: Any) -> None:
    plain = compare(zoo.load("flux"), [call()], {"every 2nd": UniformConfig(interval=2)}, fewer_steps=False)
    before = report(pipe)
    rows = compare(pipe, [call()], {"every 2nd": UniformConfig(interval=2)}, fewer_steps=False)
    assert rows == plain
    assert report(pipe).summary() == before.summary()
    pipe(**call())
    assert report(pipe).computed_ticks == before.computed_ticks


def test_demo_measures_against_full_runs(pipe: Any, tmp_path: Path) -> None:
    before = report(pipe)
    found = demo(pipe, call(), UniformConfig(interval=1), tmp_path, rounds=1)
    assert "6/6" in found.table
    assert "| 100.0 dB |" in found.table
    assert report(pipe).summary() == before.summary()
