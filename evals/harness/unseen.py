"""The library as it would be if a testbed had had no part in what `trajectory` knows before a run."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from diffcache.evals.errors import EvaluationError
from diffcache.evals.harness.results import read_result, result_path
from diffcache.evals.testbeds import splits
from diffcache.recipes import trajectory
from diffcache.trajectory.prior import SHIPPED, Prior

WHAT = "trajectory's prior"


def unseen_prior(testbed: str, shipped: Path = SHIPPED) -> Prior:
    """The prior to judge a testbed with: the shipped one, or where that was fitted on the testbed, the one fitted without it.

    Raises:
        EvaluationError: there is none: the testbed had part in every fit.
    """
    fit = json.loads(shipped.read_text())
    if testbed in fit["fitted_on"]:
        without = result_path("trajectory_prior", testbed)
        if not without.exists():
            raise EvaluationError(
                f"{WHAT} was fitted on {testbed}: fit it without, python scripts/measure/trajectory_prior.py."
            )
        fit = read_result(without)
        splits.refuse_seen(testbed, fit["fitted_on"], WHAT)
    return Prior.from_dict(fit)


@contextmanager
def judged_on(testbed: str) -> Iterator[None]:
    """Within it the whole library uses the prior that was fitted without a testbed: the method, the default, and `tune`.

    Raises:
        EvaluationError: see `unseen_prior`.
    """
    prior = unseen_prior(testbed)
    with patch.object(trajectory, "universal", lambda: prior):
        yield
