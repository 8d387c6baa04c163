"""The median of an even number of samples is between the middle two."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from diffcache.evals.experiments.quantization import Row
from diffcache.evals.harness.cell import Nearness
from diffcache.evals.harness.quality import References
from diffcache.evals.harness.rendering import Rendered
from diffcache.evals.metrics.fidelity import psnr

EVALS = Path(__file__).resolve().parents[3] / "evals"


def lower_middles(source: str) -> Iterator[int]:
    """Lines that ask a tensor for its one median, which is the lower of the middle two."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            torchs = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            alone = len(node.args) == int(torchs) and not node.keywords
            if node.func.attr in {"median", "nanmedian"} and alone:
                yield node.lineno


def test_figures_of_two_samples_are_between_them() -> None:
    full, pictures = torch.zeros(2, 3, 16, 16), torch.full((2, 3, 16, 16), 0.5)
    pictures[1] = 0.25
    near = psnr(pictures, full)
    assert References(full).quality(pictures).psnr_full == pytest.approx(float(near.mean()), abs=1e-4)
    assert Nearness(near, Rendered(pictures, 0.0, 0.0)).median == round(float(near.mean()), 1)
    assert Row("cached", 0.5, 0, 0, near.tolist(), None).median == pytest.approx(float(near.mean()))


def test_no_measurement_takes_the_lower_middle() -> None:
    found = {path: [*lower_middles(path.read_text())] for path in EVALS.rglob("*.py")}
    assert found
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_lower_middles_are_found() -> None:
    lines = (
        "a.median()",
        "b.nanmedian()",
        "torch.median(c)",
        "median(d)",
        "e.median(-1)",
        "torch.median(f, 1)",
    )
    assert [*lower_middles("\n".join(lines))] == [1, 2, 3]
