"""How near predictions of reused ticks can come to the velocities of the full run, if more were known of the pipeline or of the very picture.

`python scripts/measure/prediction_limits.py` writes evals/results/prediction_limits/<testbed>.json, in about four minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.prediction_limits import FITTED_TO, limits
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """A row for each speed-up."""
    return {
        "fitted_to": FITTED_TO,
        "rows": [
            limits(testbed, steps, speedup, args.samples) for steps in args.steps for speedup in (3.0, 4.0)
        ],
    }


if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=16, names=MANY_STEPS)
    options.add_argument("--steps", type=int, nargs="+", default=[50])
    measure_testbeds(options, "prediction_limits", measured)
