"""The method `trajectory` with a covariance that was measured in another number of steps.

It is beside the universal prior that has not seen the testbed, a covariance of that very number of steps, and evenly spaced ticks.
`python scripts/measure/transfer_steps.py` writes evals/results/transfer_steps/<testbed>.json, in about fifteen minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.experiments.transfer_steps import compared
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds

MEASURED_IN = 28


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows at each number of steps."""
    rows = [row for steps in args.steps for row in compared(testbed, MEASURED_IN, steps, args.samples)]
    return {"rows": rows}


if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, names=MANY_STEPS)
    options.add_argument("--steps", type=int, nargs="+", default=[50, 20])
    measure_testbeds(options, "transfer_steps", measured)
