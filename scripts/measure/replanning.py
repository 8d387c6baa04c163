"""The method `trajectory` with ticks that are the same in all runs, and with ticks that a run moves by its errors, beside evenly spaced ones.

Its prior has not seen the testbed. `python scripts/measure/replanning.py` writes evals/results/replanning/<testbed>.json, in about
fifteen minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.replanning import compared
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows of a testbed."""
    return {"rows": [*compared(testbed, args.samples)]}


if __name__ == "__main__":
    measure_testbeds(parser_for_testbeds(__doc__, names=MANY_STEPS), "replanning", measured)
