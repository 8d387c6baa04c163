"""Factors of testbeds are averaged in shape and in height, one vote each."""

import numpy as np
import pytest

from diffcache.evals.experiments.curves import Curve, averaged


def curve(height: float, slope: float, guidance: float = 1.0, exponent: float = 0.0) -> Curve:
    angles = (1.5, 0.8, 0.1)
    return Curve(
        guidance,
        angles,
        [height * np.exp(slope * angle) * guidance ** (exponent * angle) for angle in angles],
    )


def test_shapes_are_averaged_and_the_height_is_the_median() -> None:
    found = averaged([[curve(1, 2)], [curve(1, 2), curve(1, 2)], [curve(100, 2)]])
    assert found.factors == pytest.approx(averaged([[curve(1, 2)]]).factors, rel=1e-3)
    inside = [f for a, f in zip(found.angles, found.factors, strict=True) if 0.1 <= a <= 1.5]
    assert np.diff(np.log(inside)) == pytest.approx(2 * np.diff(found.angles)[0], rel=1e-2)


def test_a_testbed_without_runs_has_no_vote() -> None:
    assert averaged([[curve(1, 2)], []]) == averaged([[curve(1, 2)]])


def test_exponents_of_guidance_are_those_of_one_testbeds_runs_and_not_of_how_testbeds_differ() -> None:
    runs = [curve(1, 2, guidance, exponent=0.5) for guidance in (1.0, 3.0, 7.5)]
    alone = averaged([runs])
    beside = averaged([runs, [curve(1, 2, guidance=7.5, exponent=0.5)]])
    inside = (np.array(alone.angles) >= 0.1) & (np.array(alone.angles) <= 1.5)
    assert np.array(alone.exponents)[inside] == pytest.approx(0.5 * np.array(alone.angles)[inside], abs=1e-3)
    assert beside.exponents == alone.exponents
    assert beside.factors == pytest.approx(averaged([[curve(1, 2)]]).factors, rel=1e-2)
