"""Caching at every kind of site, on every denoiser of the zoo; docs/coverage.md says what this finds."""

from functools import cache
from pathlib import Path

import pytest
from support.coverage_checks import SITES, check
from zoo.denoisers import CASES

COVERAGE = Path(__file__).resolve().parents[2] / "docs" / "coverage.md"

FAST = [
    ("FluxTransformer2DModel", "stack"),
    ("SD3Transformer2DModel", "block"),
    ("WanTransformer3DModel", "sub-layer"),
    ("HunyuanDiT2DModel", "stack"),
    ("LTX2VideoTransformer3DModel", "stack"),
    ("ZImageTransformer2DModel", "block"),
    ("UNet2DConditionModel", "depth 1"),
    ("UNet2DConditionModel", "sub-layer"),
]


@cache
def documented() -> dict[tuple[str, str], str]:
    rows = [
        line.strip("| ").split(" | ") for line in COVERAGE.read_text().splitlines() if line.startswith("| ")
    ]
    return {
        (name, site): verdict
        for names, *verdicts in rows
        for name in names.split("; ")
        for site, verdict in zip(SITES, verdicts, strict=True)
    }


def holds(name: str, site: str) -> None:
    assert check(CASES[name], site) == documented()[name, site], "run scripts/tables/denoiser_coverage.py"


@pytest.mark.parametrize("name", CASES)
def test_whole_model(name: str) -> None:
    holds(name, "model")


@pytest.mark.parametrize(("name", "site"), FAST)
def test_inside(name: str, site: str) -> None:
    holds(name, site)


@pytest.mark.slow
@pytest.mark.parametrize("site", SITES[1:])
@pytest.mark.parametrize("name", CASES)
def test_every_site(name: str, site: str) -> None:
    holds(name, site)


def test_coverage_is_as_wide_as_it_says() -> None:
    found = {
        site: sum(verdict == "OK" for (_, s), verdict in documented().items() if s == site) for site in SITES
    }
    assert found["model"] >= 80
    assert found["stack"] >= 60
    assert found["block"] >= 50
    assert found["sub-layer"] >= 50
