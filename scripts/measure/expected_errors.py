"""How far expected errors are from measured ones, and whether it helps to know the pipeline's own covariance and response.

`python scripts/measure/expected_errors.py` writes evals/results/expected_errors/<testbed>.json, in about twenty minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.expected_errors import compared
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows at each number of steps."""
    return {"rows": [row for steps in args.steps for row in compared(testbed, steps, args.samples)]}


if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=32, names=MANY_STEPS)
    options.add_argument("--steps", type=int, nargs="+", default=[50, 28])
    measure_testbeds(options, "expected_errors", measured)
