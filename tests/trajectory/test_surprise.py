"""Surprises at some ticks of a run, and what they foretell of the others."""

import numpy as np
import pytest

from diffcache.trajectory.surprise import NOISE, RANGE, SHARED, foreseen

ANGLES = np.linspace(1.5, 0.1, 15)


def test_it_is_the_conditional_mean_of_an_ornstein_uhlenbeck_process() -> None:
    ticks, surprises = [2, 3, 7], [0.5, 0.8, -1.0]
    among = np.array([[np.exp(-abs(ANGLES[i] - ANGLES[j]) / RANGE) for j in ticks] for i in ticks])
    solved = np.linalg.solve(among + NOISE * np.eye(3), surprises)
    expected = [
        sum(np.exp(-abs(angle - ANGLES[j]) / RANGE) * w for j, w in zip(ticks, solved, strict=True))
        for angle in ANGLES
    ]
    assert np.log(foreseen(ANGLES, ticks, surprises)) == pytest.approx(SHARED * np.array(expected))


def test_without_surprises_all_is_as_usual() -> None:
    assert foreseen(ANGLES, [1, 4], [0.0, 0.0]) == pytest.approx(np.ones(15))


def test_a_surprise_fades_with_the_distance() -> None:
    factors = foreseen(ANGLES, [2], [2.0])
    assert factors.argmax() == 2
    assert (np.diff(factors[2:]) < 0).all()
    assert 1 < factors[-1] < 1.1
    assert foreseen(ANGLES, [2], [-2.0]) == pytest.approx(1 / factors)
