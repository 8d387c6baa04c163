"""The universal prior: a covariance on every schedule of noise levels, and the one that its experiment has found."""

from dataclasses import replace

import numpy as np
import pytest

from diffcache.schedulers.moments import Moment
from diffcache.trajectory.kernel import RIGHT_ANGLE, Kernel, UniversalKernel
from diffcache.trajectory.prior import universal
from diffcache.trajectory.process import positions_of, prior_process

KERNEL = universal().kernel.at(3.0)

SCHEDULES = {
    "flow": np.arctan2(np.linspace(1, 0.02, 50), 1 - np.linspace(1, 0.02, 50)),
    "down to sigma_min": np.arctan2(np.linspace(1, 0.001, 28), 1 - np.linspace(1, 0.001, 28)),
    "karras": np.arctan(np.geomspace(150, 0.03, 25)),
    "few": np.array([1.5, 0.7]),
}


def moments(angles: np.ndarray, scales: np.ndarray | None = None) -> list[Moment]:
    scales = np.ones(len(angles)) if scales is None else scales
    return [
        Moment(i, None, float(angle), float(scale))
        for i, (angle, scale) in enumerate(zip(angles, scales, strict=True))
    ]


@pytest.mark.parametrize("name", SCHEDULES)
def test_it_is_a_covariance_with_unit_variances(name: str) -> None:
    process = prior_process(KERNEL, moments(SCHEDULES[name]))
    assert np.linalg.eigvalsh(process.covariance).min() > 0
    assert process.covariance.diagonal() == pytest.approx(1, abs=1e-3)
    assert (np.diff(process.positions) < 0).all()  # one way from noise to data


def test_near_ticks_are_more_alike_than_far_ones() -> None:
    row = prior_process(KERNEL, moments(SCHEDULES["flow"])).covariance[10]
    assert (np.diff(row[10:]) < 0).all()
    assert (np.diff(row[:11]) > 0).all()


def test_a_velocity_from_a_predicted_noise_is_less_certain_the_more_noise_there_is() -> None:
    angles = SCHEDULES["karras"]
    plain = prior_process(KERNEL, moments(angles)).covariance
    computed = prior_process(KERNEL, moments(angles, np.cos(angles))).covariance
    noise = (computed - plain).diagonal()
    assert noise == pytest.approx(KERNEL.output_noise**2 * np.tan(angles) ** 2)
    assert np.array_equal(computed - np.diag(noise), plain)


def test_ticks_of_unknown_noise_levels_count_as_those_of_a_flow_with_equal_steps() -> None:
    unknown = [Moment(0, None, 1.5), *map(Moment, range(1, 4)), Moment(4, None, 0.2)]
    flow = [Moment(i, None, float(np.arctan2(5 - i, i)), is_flow=True) for i in range(5)]
    assert positions_of(KERNEL, unknown) == pytest.approx(positions_of(KERNEL, flow))


def test_its_ends_are_finite() -> None:
    assert np.isfinite(KERNEL.position(np.array([0.0, RIGHT_ANGLE]), np.array([RIGHT_ANGLE, 0.0]))).all()


def test_velocities_change_fast_after_pure_noise_whatever_its_angle() -> None:
    ends = []
    for pure_noise in (RIGHT_ANGLE, 1.48):
        run = [Moment(i, None, pure_noise - turned) for i, turned in enumerate((0.0, 0.02, 0.5, 0.52))]
        ends.append(np.diff(positions_of(KERNEL, run))[[0, 2]])
    assert ends[0][0] == pytest.approx(ends[1][0], rel=0.02)
    assert ends[0][0] < 10 * ends[0][1] < 0  # positions fall


def test_a_run_that_begins_with_a_picture_is_not_taken_to_begin_with_pure_noise() -> None:
    """Image-to-image begins at a lower noise level, with all the signal that there is at that level."""
    whole = moments(SCHEDULES["flow"])
    left = [replace(moment, turned=RIGHT_ANGLE - (moment.angle or 0)) for moment in whole[20:]]
    assert positions_of(KERNEL, left) == pytest.approx(positions_of(KERNEL, whole)[20:])


def test_a_kernel_is_read_from_what_was_written() -> None:
    with pytest.raises(KeyError):
        Kernel.from_dict({"data": 1.0})
    assert Kernel.from_dict(vars(KERNEL)) == KERNEL


def test_guidance_stretches_the_noisy_end_of_the_axis() -> None:
    universal_kernel = UniversalKernel(KERNEL, 0.5)
    assert universal_kernel.at(1.0) == KERNEL

    def gaps(guidance: float) -> np.ndarray:
        angles = np.array([0.01, 0.02, 1.55, 1.56])
        return np.diff(universal_kernel.at(guidance).position(angles, RIGHT_ANGLE - angles))

    assert gaps(4.0)[0] == pytest.approx(gaps(1.0)[0], rel=0.05)
    assert gaps(4.0)[2] == pytest.approx(2 * gaps(1.0)[2], rel=0.01)
    assert universal().kernel.exponent > 0
