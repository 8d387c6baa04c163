"""Measures how much pictures change with an error at one tick, by noise level, on each testbed.

`python scripts/measure/sensitivity.py` writes evals/results/sensitivity/<testbed>.json, in about ten minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.sensitivity import felt
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS, SAMPLES
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows of each number of steps."""
    return {"rows": [row for steps in args.steps for row in felt(testbed, steps)]}


if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, SAMPLES, names=MANY_STEPS)
    options.add_argument("--steps", type=int, nargs="+", default=[50, 20])
    measure_testbeds(options, "sensitivity", measured)
