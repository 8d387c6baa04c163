"""The method `trajectory` against evenly spaced ticks and fewer steps: with a prior that has not seen the testbed, and with its own covariance.

`python scripts/measure/trajectory.py` writes evals/results/trajectory/<testbed>.json, in about an hour.
"""

from diffcache.evals.experiments.trajectory import compared
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_at_steps, parser_for_testbeds

if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=32, names=MANY_STEPS)
    measure_at_steps(
        options, "trajectory", [50], lambda testbed, steps, args: compared(testbed, steps, args.samples)
    )
