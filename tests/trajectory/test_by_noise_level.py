"""A factor by noise level and guidance."""

import numpy as np
import pytest

from diffcache.schedulers.moments import Moment
from diffcache.trajectory.by_noise_level import ByNoiseLevel

FACTOR = ByNoiseLevel((0.0, 1.0), (0.25, 4.0), (0.0, 2.0))


def moments(*angles: float) -> list[Moment]:
    return [Moment(i, angle=angle) for i, angle in enumerate(angles)]


def test_its_logarithm_is_interpolated_and_its_ends_go_on() -> None:
    assert FACTOR.at(moments(1.5, 1.0, 0.5, 0.0), 1.0) == pytest.approx([4, 4, 1, 0.25])


def test_it_is_multiplied_by_a_power_of_the_scale_of_guidance() -> None:
    assert FACTOR.at(moments(1.0, 0.5, 0.0), 3.0) == pytest.approx([4 * 9, 1 * 3, 0.25])


def test_it_is_one_where_angles_are_unknown() -> None:
    assert np.array_equal(FACTOR.at([Moment(0, angle=1.0), Moment(1)], 3.0), np.ones(2))


def test_it_is_read_from_what_it_is_written_to() -> None:
    data = {"angles": [0.0, 1.0], "factors": [0.25, 4.0], "exponents": [0.0, 2.0]}
    assert ByNoiseLevel.from_dict(data) == FACTOR
