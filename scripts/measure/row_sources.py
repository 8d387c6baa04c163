"""Tokens that a cache chooses by itself (by importance, or one of each cluster), beside tick caching and fewer steps.

`python scripts/measure/row_sources.py` writes evals/results/row_sources/<testbed>.json, in about a minute.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.row_sources import drawn
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds

STEPS = {"turbo": (4, 8), "kontext_turbo": (4, 8), "flux": (8,)}


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows at each number of steps."""
    return {"rows": [row for steps in STEPS[testbed] for row in drawn(testbed, steps, args.samples)]}


if __name__ == "__main__":
    measure_testbeds(parser_for_testbeds(__doc__, names=tuple(STEPS)), "row_sources", measured)
