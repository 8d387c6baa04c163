"""Some tokens only, beside tick caching: edits (kontext, and kontext_turbo at its four steps and at eight) and inpainting (flux).

`python scripts/measure/rows.py` writes evals/results/rows/<testbed>.json, in about ten minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.rows import edited, inpainted
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds
from diffcache.evals.testbeds import zoo


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows at each number of steps."""
    if testbed == "flux":
        return {"rows": inpainted(args.steps, args.samples)}
    few = [zoo.STEPS[testbed], 2 * zoo.STEPS[testbed]]
    steps = few if testbed == "kontext_turbo" else args.steps
    return {"rows": edited(testbed, steps, args.samples)}


if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=6, names=("kontext_turbo", "kontext", "flux"))
    options.add_argument("--steps", type=int, nargs="+", default=[4, 8, 28])
    measure_testbeds(options, "rows", measured)
