"""Some tokens only, beside tick caching: edits (kontext, and kontext_turbo at its four steps) and inpainting (flux).

`python scripts/measure/rows.py` writes evals/results/rows/<testbed>.json, in about ten minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.rows import edited, inpainted
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds
from diffcache.evals.testbeds import zoo


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows at each number of steps."""
    steps = [zoo.STEPS[testbed]] if testbed == "kontext_turbo" else args.steps
    rows = [
        row
        for count in steps
        for row in (
            inpainted(count, args.samples) if testbed == "flux" else edited(testbed, count, args.samples)
        )
    ]
    return {"rows": rows}


if __name__ == "__main__":
    names = ("kontext", "flux", *(["kontext_turbo"] if "kontext_turbo" in zoo.ALL else []))
    options = parser_for_testbeds(__doc__, samples=8, names=names)
    options.add_argument("--steps", type=int, nargs="+", default=[4, 8, 28])
    measure_testbeds(options, "rows", measured)
