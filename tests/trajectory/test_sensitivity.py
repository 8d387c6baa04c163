"""The sensitivity of a result, by noise level."""

import numpy as np
import pytest

from diffcache.schedulers.moments import Moment
from diffcache.trajectory.sensitivity import Sensitivity

SENSITIVITY = Sensitivity((0.0, 1.0), (0.25, 4.0))


def test_its_logarithm_is_interpolated_and_its_ends_go_on() -> None:
    at = SENSITIVITY.at([Moment(i, angle=angle) for i, angle in enumerate((1.5, 1.0, 0.5, 0.0))])
    assert at == pytest.approx([4, 4, 1, 0.25])


def test_it_is_one_where_angles_are_unknown() -> None:
    assert np.array_equal(SENSITIVITY.at([Moment(0, angle=1.0), Moment(1)]), np.ones(2))


def test_it_is_read_from_what_it_is_written_to() -> None:
    assert Sensitivity.from_dict({"angles": [0.0, 1.0], "factors": [0.25, 4.0]}) == SENSITIVITY
