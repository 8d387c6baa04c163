"""How much better the weights of `speedup=` could be with the same computed ticks: learned by gradients, on four samples, through whole runs.

`python scripts/measure/learned_weights.py` writes evals/results/learned_weights/<testbed>.json, in about twenty minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.learned_weights import LEARNED_ON, learned
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds

NAMES = ("flux", "pixart", "sana", "sd3")
"""Those whose runs take little, and whose pipelines give latents."""


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """A row for each speed-up."""
    return {
        "learned_on": LEARNED_ON,
        "rows": [
            learned(testbed, steps, speedup, args.samples) for steps in args.steps for speedup in (3.0, 4.0)
        ],
    }


if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=16, names=NAMES)
    options.add_argument("--steps", type=int, nargs="+", default=[50])
    measure_testbeds(options, "learned_weights", measured)
