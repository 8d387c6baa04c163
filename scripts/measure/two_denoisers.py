"""The method `trajectory` on two denoisers that follow one another, with the universal prior and with their own covariance.

`python scripts/measure/two_denoisers.py` writes evals/results/two_denoisers/wan.json, in about three minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.two_denoisers import compared
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """A row for each speed-up."""
    return {"rows": list(compared(testbed, args.steps, args.samples))}


if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, names=("wan",))
    options.add_argument("--steps", type=int, default=50)
    measure_testbeds(options, "two_denoisers", measured)
