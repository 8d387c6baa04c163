"""The response of a denoiser: from measured products, and by noise level and guidance."""

import numpy as np
import pytest

from diffcache.schedulers.moments import Moment, signal_and_noise
from diffcache.trajectory.response import Response, UniversalResponse, of_flow

UNIVERSAL = UniversalResponse((0.0, 1.0), ((-1.0, 3.0), (4.0, 8.0)), ((0.5, 1.0), (1.0, 2.0)), (0.25, 0.75))


def moments(*angles: float) -> list[Moment]:
    return [Moment(i, angle=angle, is_flow=True) for i, angle in enumerate(angles)]


def test_it_is_a_mean_and_what_is_left() -> None:
    products = 5 * np.array([[-2.0, 4.0 + 9.0, 1.0]])
    assert Response.measured(products).factors[:, 0] == pytest.approx([-2, 3])


def test_ticks_that_show_nothing_are_interpolated() -> None:
    products = np.zeros((5, 3))
    products[1], products[3] = (1, 1, 1), (3, 13, 1)
    found = Response.measured(products)
    assert found.mean == pytest.approx([1, 1, 2, 3, 3])
    assert found.spread == pytest.approx([0, 0, 1, 2, 2])


def test_a_run_without_errors_shows_no_response() -> None:
    assert not Response.measured(np.zeros((4, 3))).factors.any()


def test_it_is_linear_in_the_angle_and_in_guidance() -> None:
    assert UNIVERSAL.at(moments(1.5, 0.5, 0.0), 1.0).factors == pytest.approx(
        np.array([[3, 1, -1], [8, 6, 4]])
    )
    assert UNIVERSAL.at(moments(1.0, 0.0), 3.0).factors == pytest.approx(np.array([[5, 0], [12, 6]]))


def test_its_mean_may_be_off_as_denoisers_differ() -> None:
    assert UNIVERSAL.at(moments(1.5, 0.5, 0.0), 7.0).deviation == pytest.approx([0.75, 0.5, 0.25])
    assert UNIVERSAL.at([Moment(0)], 1.0).deviation == pytest.approx([0.5])
    assert Response.measured(np.ones((3, 3))).deviation is None


def test_less_guidance_than_none_leaves_no_spread_below_zero() -> None:
    assert UNIVERSAL.at(moments(1.0, 0.0), -9.0).spread == pytest.approx([0, 0])


def test_it_is_the_mean_over_angles_where_one_is_unknown() -> None:
    found = UNIVERSAL.at([Moment(0, angle=1.0), Moment(1)], 1.0).factors
    assert found == pytest.approx(np.array([[1, 1], [6, 6]]))


def gaussian_response(angle: float, variance: float, is_flow: bool) -> float:
    """Of the best denoiser for Gaussian data: how noise less clean sample changes with the sample."""
    signal, noise = signal_and_noise(angle, is_flow)
    clean = variance * signal / (variance * signal**2 + noise**2)  # its mean, over the sample
    return (1 - signal * clean) / noise - clean


@pytest.mark.parametrize("variance", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("angle", [0.2, np.pi / 4, 1.3, np.pi / 2])
def test_one_response_serves_flows_and_diffusion_models(angle: float, variance: float) -> None:
    flow, diffusion = ([Moment(0, angle=angle, is_flow=is_flow)] for is_flow in (True, False))
    response = gaussian_response(angle, variance, True)
    universal = UniversalResponse((angle,), ((response,), (2.0,)), ((0.0,), (0.0,)), (3.0,))
    assert universal.at(flow, 1.0).mean == pytest.approx(response)
    of_diffusion, larger = universal.at(diffusion, 1.0), np.cos(angle) + np.sin(angle)
    assert of_diffusion.mean == pytest.approx(gaussian_response(angle, variance, False))
    assert of_diffusion.spread == pytest.approx(2 / larger)
    assert of_diffusion.deviation == pytest.approx(3 / larger)
    assert of_flow(of_diffusion, diffusion).factors == pytest.approx(np.array([[response], [2.0]]))


def test_it_is_read_from_what_it_is_written_to() -> None:
    data = {
        "angles": [0.0, 1.0],
        "factors": [[-1.0, 3.0], [4.0, 8.0]],
        "slopes": [[0.5, 1.0], [1.0, 2.0]],
        "deviations": [0.25, 0.75],
    }
    assert UniversalResponse.from_dict(data) == UNIVERSAL
