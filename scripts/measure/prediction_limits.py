"""How near predictions of reused ticks can come to the velocities of the full run, if more were known of the pipeline or of the very picture.

`python scripts/measure/prediction_limits.py` writes evals/results/prediction_limits/<testbed>.json, in about four minutes.
"""

from diffcache.evals.experiments.prediction_limits import FITTED_TO, limits
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_at_steps, parser_for_testbeds

if __name__ == "__main__":
    measure_at_steps(
        parser_for_testbeds(__doc__, samples=16, names=MANY_STEPS),
        "prediction_limits",
        [50],
        lambda testbed, steps, args: [
            limits(testbed, steps, speedup, args.samples) for speedup in (3.0, 4.0)
        ],
        fitted_to=FITTED_TO,
    )
