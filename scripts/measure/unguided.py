"""`speedup=` without guidance, with a prior that has not seen the testbed, beside evenly spaced ticks and fewer steps.

`python scripts/measure/unguided.py` writes evals/results/unguided/<testbed>.json, in about twenty minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.trajectory import unguided
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds
from diffcache.evals.testbeds import zoo


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows at each number of steps."""
    return {"rows": [row for steps in args.steps for row in unguided(testbed, steps, args.samples)]}


if __name__ == "__main__":
    names = [name for name in MANY_STEPS if name in zoo.GUIDED]
    options = parser_for_testbeds(__doc__, samples=32, names=names)
    options.add_argument("--steps", type=int, nargs="+", default=[50])
    measure_testbeds(options, "unguided", measured)
