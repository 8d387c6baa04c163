"""Conditional means against what is known by hand: polynomials, holding, straight lines, least squares."""

import numpy as np
import pytest

from diffcache.prediction.predictors import Polynomial
from diffcache.schedulers.moments import Moment
from diffcache.trajectory.gaussian import conditional_weights
from diffcache.trajectory.process import Process

X = np.array([1.0, 0.9, 0.75, 0.6, 0.5, 0.3, 0.2, 0.0])


def smooth(x: np.ndarray) -> np.ndarray:
    return np.exp(-((x[:, None] - x[None, :]) ** 2) / 0.5)


@pytest.mark.parametrize("order", [1, 2])
def test_a_process_of_polynomials_is_extrapolated_as_one(order: int) -> None:
    covariance = sum(np.outer(X**i, X**i) for i in range(order + 1))
    known = list(range(order, -1, -1))
    weights = conditional_weights(covariance, known, [5], noise=1e-13)[:, 0]
    moments = [Moment(tick, float(X[tick])) for tick in known]
    lagrange = Polynomial(order).weights(moments, Moment(5, float(X[5])))
    assert weights == pytest.approx(lagrange, rel=1e-3)


def test_they_are_the_least_squares_weights_of_samples() -> None:
    draws = np.random.default_rng(0).multivariate_normal(np.zeros(8), smooth(X), size=200_000)
    fitted = np.linalg.lstsq(draws[:, [0, 2, 4]], draws[:, 5], rcond=None)[0]
    assert conditional_weights(smooth(X), [0, 2, 4], [5], noise=0.0)[:, 0] == pytest.approx(fitted, rel=0.02)


def test_noise_makes_weights_smaller() -> None:
    sizes = [
        np.abs(conditional_weights(smooth(X), [3, 2, 1, 0], [5], noise)).sum() for noise in (1e-8, 1e-4, 1e-1)
    ]
    assert sizes == sorted(sizes, reverse=True)


def test_a_very_rough_process_is_held_and_interpolated_by_lines() -> None:
    rough = Process(smooth(X), X).believed(1e4)
    assert conditional_weights(rough, [2, 1, 0], [4], 1e-12)[:, 0] == pytest.approx([1, 0, 0], abs=1e-2)
    between = conditional_weights(rough, [5, 3, 1], [4], 1e-12)[:, 0]
    share = (X[4] - X[3]) / (X[5] - X[3])
    assert between == pytest.approx([share, 1 - share, 0], abs=1e-2)


def test_without_roughness_the_covariance_is_believed_as_it_is() -> None:
    assert np.array_equal(Process(smooth(X), X).believed(0.0), smooth(X))
