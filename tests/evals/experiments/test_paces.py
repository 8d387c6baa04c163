"""Errors of predictions are measured against what a kernel says of them."""

import numpy as np
import pytest

from diffcache.evals.experiments.trajectory_prior import START, TRUST, Measured, Seen, Setting, paces, usual
from diffcache.prediction.predictors import Conditional
from diffcache.schedulers.moments import Moment
from diffcache.trajectory.process import prior_process
from diffcache.trajectory.response import Response

MOMENTS = tuple(Moment(i, angle=1.4 - i / 10) for i in range(12))
EXPECTED = prior_process(START, MOMENTS).covariance


def run(covariance: np.ndarray) -> Measured:
    return Measured(Setting("dit", 12), 3.0, covariance, MOMENTS, Response(np.zeros((3, 12))))


def test_a_run_that_follows_the_kernel_errs_as_foretold_however_large_its_velocities_are() -> None:
    for times in (1.0, 4.0):
        found = paces(run(times * EXPECTED), START)
        assert found.guidance == 3.0
        assert found.angles == pytest.approx([moment.angle for moment in MOMENTS[2:]])
        assert found.factors == pytest.approx(np.ones(10), rel=0.02)


def test_a_run_whose_ticks_have_more_of_their_own_errs_more() -> None:
    rough = EXPECTED + 1e-3 * np.eye(12)
    found = np.array(paces(run(rough), START).factors)
    assert (found > 1.2).all()


def test_what_runs_measured_is_compared_with_what_the_kernel_expects_of_the_same_prediction() -> None:
    expected = Conditional(EXPECTED, TRUST.noise).expected_error
    logs = {(tick, past): np.log(3 * expected(past, tick)) for tick, past in ((5, (3, 2, 0)), (9, (5, 3)))}
    found = usual(run(EXPECTED), [Seen(TRUST, logs)], START)
    assert found.angles == pytest.approx([MOMENTS[9].angle, MOMENTS[5].angle])
    assert found.factors == pytest.approx([3.0, 3.0])
