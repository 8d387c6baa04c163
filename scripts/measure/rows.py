"""Some tokens only, beside tick caching: edits and inpainting (kontext and kontext_turbo), and inpainting (flux).

`python scripts/measure/rows.py` writes evals/results/rows/<testbed>.json, in about half an hour.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.rows import edited, inpainted
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds
from diffcache.evals.testbeds import zoo


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows at each number of steps."""
    painted = {"inpainting": inpainted(testbed, args.steps, args.samples)}
    if testbed not in zoo.OF_EDITS:
        return painted
    return {"edits": edited(testbed, args.steps, args.samples), **painted}


if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=16, names=("kontext_turbo", "kontext", "flux"))
    options.add_argument("--steps", type=int, nargs="+", default=[4, 8, 28])
    measure_testbeds(options, "rows", measured)
