"""Whole-model caching on every denoiser of the zoo; docs/coverage.md says what this finds."""

from pathlib import Path

import pytest
from coverage_checks import whole_model
from zoo.denoisers import CASES

COVERAGE = Path(__file__).resolve().parents[1] / "docs" / "coverage.md"


@pytest.mark.parametrize("name", CASES)
def test_whole_model(name: str) -> None:
    verdict = whole_model(CASES[name])
    assert f"| {name} | {verdict} |" in COVERAGE.read_text(), "run scripts/coverage.py"
