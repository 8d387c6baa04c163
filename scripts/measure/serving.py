"""Requests per second of processor time under continuous batching: no cache, a cache for each request, one cache for all.

`python scripts/measure/serving.py` writes evals/results/serving/sd3.json, in about two minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.serving import TESTBED, throughput
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """A row for each contender and setting."""
    return throughput(args.samples)


if __name__ == "__main__":
    measure_testbeds(parser_for_testbeds(__doc__, samples=16, names=(TESTBED,)), "serving", measured)
