"""Sensitivities of testbeds are averaged in shape and in height, one vote each."""

import numpy as np
import pytest

from diffcache.evals.experiments.sensitivity import AllButOne, Felt, averaged
from diffcache.evals.harness.rendering import render
from diffcache.evals.testbeds import zoo


def rows(height: float, slope: float, steps: int = 50) -> list[Felt]:
    return [
        {"steps": steps, "tick": i, "angle": angle, "sensitivity": height * np.exp(slope * angle)}
        for i, angle in enumerate((1.5, 0.8, 0.1))
    ]


def test_shapes_are_averaged_and_the_height_is_the_median() -> None:
    found = averaged([rows(1, 2), rows(1, 2) + rows(1, 2, steps=20), rows(100, 2)])
    alone = averaged([rows(1, 2)])
    assert found.factors == pytest.approx(alone.factors, rel=1e-3)
    inside = [f for a, f in zip(found.angles, found.factors, strict=True) if 0.1 <= a <= 1.5]
    assert np.diff(np.log(inside)) == pytest.approx(2 * np.diff(found.angles)[0], rel=1e-2)


def test_a_testbed_without_figures_has_no_vote() -> None:
    assert averaged([rows(1, 2), []]) == averaged([rows(1, 2)])


def test_one_tick_is_held_and_all_others_are_computed() -> None:
    run = render(zoo.load("flux"), zoo.sample_call("flux", 0, 6, 1), AllButOne(held=3))
    assert run.run_report.computed_ticks == [0, 1, 2, 4, 5]
