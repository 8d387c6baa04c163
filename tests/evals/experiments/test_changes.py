"""What runs show is measured against what a kernel says of it."""

import numpy as np
import pytest

from diffcache.evals.experiments.trajectory_prior import START, Measured, Seen, Setting, changes, usual
from diffcache.prediction.predictors import Conditional
from diffcache.schedulers.moments import Moment
from diffcache.trajectory.process import prior_process
from diffcache.trajectory.response import Response
from diffcache.trajectory.result_error import Trust


def test_a_run_that_follows_the_kernel_changes_as_foretold_and_a_faster_one_by_its_factor() -> None:
    moments = tuple(Moment(i, angle=1.4 - i / 10) for i in range(12))
    covariance = prior_process(START.at(3.0), moments).covariance

    def run(times: float) -> Measured:
        return Measured(Setting("dit", 12), 3.0, times * covariance, moments, Response(np.zeros((3, 12))))

    found = changes(run(1.0), START)
    assert found.guidance == 3.0
    assert found.angles == pytest.approx([moment.angle for moment in moments[1:]])
    assert found.factors == pytest.approx(np.ones(11))
    assert changes(run(4.0), START).factors == pytest.approx(np.full(11, 2.0))


def test_what_runs_measured_is_compared_with_what_the_kernel_expects_of_the_same_prediction() -> None:
    moments = tuple(Moment(i, angle=1.4 - i / 10) for i in range(12))
    covariance = prior_process(START.at(3.0), moments).covariance
    run = Measured(Setting("dit", 12), 3.0, covariance, moments, Response(np.zeros((3, 12))))
    expected = Conditional(covariance, 1e-3).expected_error
    logs = {(tick, past): np.log(3 * expected(past, tick)) for tick, past in ((5, (3, 2, 0)), (9, (5, 3)))}
    found = usual(run, [Seen(Trust(1e-3, 0.0), logs)], START)
    assert found.angles == pytest.approx([moments[9].angle, moments[5].angle])
    assert found.factors == pytest.approx([3.0, 3.0])
