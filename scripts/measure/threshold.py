"""What the default computes and loses by its threshold, with a prior that has not seen the testbed, beside evenly spaced ticks and fewer steps.

`python scripts/measure/threshold.py` writes evals/results/threshold/<testbed>.json, in about ten minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.trajectory import controlled
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows at each number of steps."""
    return {"rows": [row for steps in args.steps for row in controlled(testbed, steps, args.samples)]}


if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=32, names=MANY_STEPS)
    options.add_argument("--steps", type=int, nargs="+", default=[50])
    measure_testbeds(options, "threshold", measured)
