"""Measures how much of a tick's error is left once its conditional output is known, on each testbed with guidance.

`python scripts/measure/guidance_passes.py` writes evals/results/guidance_passes/<testbed>.json, in half a minute.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.guidance_passes import left
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS, SAMPLES
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds
from diffcache.evals.testbeds import zoo

STEPS = 50


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows of one testbed."""
    return {"rows": list(left(testbed, STEPS, args.samples))}


if __name__ == "__main__":
    names = [name for name in MANY_STEPS if name in zoo.GUIDED]
    measure_testbeds(parser_for_testbeds(__doc__, SAMPLES, names=names), "guidance_passes", measured)
