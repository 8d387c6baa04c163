"""Comparisons: the rows of methods and of fewer steps, and what is measured of them."""

import pytest

from diffcache.evals.harness import comparison as harness
from diffcache.evals.harness.comparison import Comparison, table
from diffcache.evals.testbeds import zoo


def test_a_comparison_has_fewer_steps_under_each_noise_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "REFERENCE_STEPS", 8)  # instead of 1000
    comparison = Comparison(zoo.load("flux"), zoo.sample_call("flux", 0, 6, 1))
    rows = [comparison.full_row(), *comparison.fewer_steps(3)]
    assert [row.name for row in rows] == ["full run", "3 steps, own", "3 steps, DPM++ 2M", "3 steps, UniPC"]
    assert rows[0].psnr_full == 100.0
    assert all(row.psnr_full < 100 for row in rows[1:])
    assert all(row.psnr_reference is not None and row.psnr_reference < 100 for row in rows)
    assert "| 3 steps, UniPC | 3/6 | 50% |" in table(rows)
    assert "PSNR to 1000 steps" in table(rows)


def test_a_comparison_measures_a_distance_where_it_is_asked_to() -> None:
    call = zoo.sample_call("dit", 0, 2, 2)
    comparison = Comparison(zoo.load("dit"), call, referenced=False, distance=lambda pictures: len(pictures))
    rows = [comparison.full_row()]
    assert rows[0].kid == 2
    assert table(rows).splitlines()[0].endswith("| KID |")
    assert "1000" not in table(rows)
