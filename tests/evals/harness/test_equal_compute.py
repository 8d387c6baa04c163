"""A control is interpolated to another method's compute, and never beyond its own settings."""

import pytest

from diffcache.evals.errors import EvaluationError
from diffcache.evals.harness.equal_compute import Point, at_compute, interpolated


def test_a_control_lies_on_the_line_between_its_settings_around_a_compute() -> None:
    points = [Point(10, 20.0), Point(14, 40.0), Point(30, 50.0)]
    assert interpolated(points, 11) == 25.0
    assert interpolated(points, 14) == 40.0


@pytest.mark.parametrize("compute", [9, 31])
def test_nothing_is_guessed_beyond_the_settings(compute: float) -> None:
    with pytest.raises(EvaluationError, match="no setting computes"):
        interpolated([Point(10, 20.0), Point(30, 50.0)], compute)


@pytest.mark.parametrize("slope", [0.3, 3.0, 40.0])
def test_an_adaptive_method_is_measured_on_both_sides_of_a_compute(slope: float) -> None:
    tried = []

    def measured(threshold: float) -> Point:
        tried.append(round(50 / (1 + slope * threshold)))
        return Point(tried[-1], 2.0 * tried[-1])

    assert at_compute(measured, 26.5) == pytest.approx(53.0)
    assert min(tried) <= 26.5 <= max(tried)
    assert len(tried) < 16


def test_a_method_that_computes_more_at_any_threshold_is_refused() -> None:
    with pytest.raises(EvaluationError, match="less than 26"):
        at_compute(lambda threshold: Point(40, 50.0), 26)
