"""Bytes of keys and values against PSNR on the next-scale testbed: ScaleKV, uniform budgets, and controls.

`python scripts/measure/next_scale.py` writes evals/results/next_scale/next_scale.json, in about three minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments import next_scale
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """A row for each policy and budget."""
    return next_scale.measured(args.samples)


if __name__ == "__main__":
    measure_testbeds(parser_for_testbeds(__doc__, samples=72, names=("next_scale",)), "next_scale", measured)
