"""The method `trajectory` against evenly spaced ticks and fewer steps: with a prior that has not seen the testbed, and with its own covariance.

`python scripts/measure/trajectory.py` writes evals/results/trajectory/<testbed>.json, in about an hour.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.trajectory import compared
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows at each number of steps."""
    return {"rows": [row for steps in args.steps for row in compared(testbed, steps, args.samples)]}


if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=32, names=MANY_STEPS)
    options.add_argument("--steps", type=int, nargs="+", default=[50])
    measure_testbeds(options, "trajectory", measured)
