"""What runs show is measured against what a kernel says of it."""

import numpy as np
import pytest

from diffcache.evals.experiments.trajectory_prior import START, Measured, Setting, changes
from diffcache.schedulers.moments import Moment
from diffcache.trajectory.process import prior_process
from diffcache.trajectory.response import Response


def test_a_run_that_follows_the_kernel_changes_as_foretold_and_a_faster_one_by_its_factor() -> None:
    moments = tuple(Moment(i, angle=1.4 - i / 10) for i in range(12))
    covariance = prior_process(START.at(3.0), moments).covariance

    def run(times: float) -> Measured:
        return Measured(Setting("dit", 12), 3.0, times * covariance, moments, Response(np.zeros((2, 12))))

    found = changes(run(1.0), START)
    assert found.strength == 3.0
    assert found.angles == pytest.approx([moment.angle for moment in moments[1:]])
    assert found.factors == pytest.approx(np.ones(11))
    assert changes(run(4.0), START).factors == pytest.approx(np.full(11, 2.0))
