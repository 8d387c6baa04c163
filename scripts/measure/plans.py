"""How good the plans of `speedup=` are beside evenly spaced ticks and plans with the pipeline's own covariance, by what was measured of it.

`python scripts/measure/plans.py` writes evals/results/plans/<testbed>.json, in about ten minutes. One more computed tick can change a picture by 5 dB
either way, so a rule for plans is judged by all numbers of ticks. `trajectory.py` draws four of them.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.plans import planned
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows at each number of steps."""
    return {"rows": [row for steps in args.steps for row in planned(testbed, steps)]}


if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=None, names=MANY_STEPS)
    options.add_argument("--steps", type=int, nargs="+", default=[50, 28, 20])
    measure_testbeds(options, "plans", measured)
