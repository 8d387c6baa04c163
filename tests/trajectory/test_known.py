"""What is known of a run whose noise scheduler is not: how much each velocity moves the sample."""

from __future__ import annotations

import numpy as np

from diffcache.noise_schedulers.levels import levels_of_loop
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.trajectory.known import Course


def course_of(sigmas: list[float]) -> Course:
    times = Timetable(len(sigmas), levels_of_loop(None, sigmas))
    return Course(tuple(times.moments), None, 1.0)


def test_a_velocity_moves_the_sample_by_the_change_of_its_share_of_noise() -> None:
    steps = np.array([-0.4, -0.3, -0.3])
    expected = np.tril(np.tile(steps, (4, 1)), -1)
    np.testing.assert_allclose(course_of([1.0, 0.6, 0.3]).influence_or_guess, expected, atol=1e-12)


def test_heun_steps_with_the_mean_of_two_velocities() -> None:
    sigmas, seen, x = [1.0, 0.6, 0.6, 0.3, 0.3], [], np.zeros(5)
    velocities = np.eye(5)
    for first, step in ((0, -0.4), (2, -0.3)):
        seen += [x, x + step * velocities[first]]
        x = x + step * (velocities[first] + velocities[first + 1]) / 2
    seen += [x, x - 0.3 * velocities[4]]  # the last step is Euler's
    np.testing.assert_allclose(course_of(sigmas).influence_or_guess, np.array(seen), atol=1e-12)
