"""Measures how much pictures change with an error at one tick, by noise level and scale of guidance, on each testbed.

`python scripts/measure/sensitivity.py` writes evals/results/sensitivity/<testbed>.json, in about twenty minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.sensitivity import felt
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS, SAMPLES, paced
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows of all its runs."""
    return {"rows": [row for setting in paced(testbed) for row in felt(setting)]}


if __name__ == "__main__":
    measure_testbeds(parser_for_testbeds(__doc__, SAMPLES, names=MANY_STEPS), "sensitivity", measured)
