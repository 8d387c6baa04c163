"""How long `trajectory` plans before a run.

`python scripts/measure/planning_time.py` writes evals/results/planning_time/<testbed>.json, in about two minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.planning_time import planning_times
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The times at each number of steps."""
    return {"rows": [planning_times(testbed, steps) for steps in args.steps]}


if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=None, names=MANY_STEPS)
    options.add_argument("--steps", type=int, nargs="+", default=[20, 28, 50, 100])
    measure_testbeds(options, "planning_time", measured)
