"""Processes: what is known of velocities before a run."""

import numpy as np
import pytest

from diffcache.schedulers.moments import Moment
from diffcache.trajectory.prior import universal
from diffcache.trajectory.process import prior_process, with_second_calls
from diffcache.trajectory.response import Response

KERNEL = universal().kernel.at(1.0)


def test_a_second_call_at_a_noise_level_is_foretold_as_far_as_its_sample_is_the_same() -> None:
    angles = (1.5, 1.2, 1.2, 0.8)
    moments = tuple(Moment(i, angle=angle) for i, angle in enumerate(angles))
    process = prior_process(KERNEL, moments)
    influence = [[0, 0, 0, 0], [0.4, 0, 0, 0], [0.2, 0.2, 0, 0], [0.2, 0.2, 0.4, 0]]  # Heun's
    response = Response(np.array([[3.0] * 4, [4.0] * 4]))
    found = with_second_calls(process, moments, influence, response).covariance - process.covariance
    difference = process.covariance[0, 0] + process.covariance[1, 1] - 2 * process.covariance[0, 1]
    squared = 3**2 + 4**2
    assert found == pytest.approx(np.diag([0, 0, squared * 0.2**2 * difference, 0]))


def test_a_process_without_second_calls_stays_as_it_is() -> None:
    moments = tuple(Moment(i, angle=1.5 - i / 4) for i in range(4))
    process = prior_process(KERNEL, moments)
    assert with_second_calls(process, moments, ((1.0,) * 4,) * 4, Response(np.ones((2, 4)))) is process
    unknown = tuple(map(Moment, range(4)))
    assert with_second_calls(process, unknown, ((1.0,) * 4,) * 4, Response(np.ones((2, 4)))) is process
