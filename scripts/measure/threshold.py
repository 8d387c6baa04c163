"""What the default computes and loses by its threshold, with a prior that has not seen the testbed, beside evenly spaced ticks and fewer steps.

`python scripts/measure/threshold.py` writes evals/results/threshold/<testbed>.json, in about ten minutes.
"""

from diffcache.evals.experiments.trajectory import controlled
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_at_steps, parser_for_testbeds

if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=32, names=MANY_STEPS)
    measure_at_steps(
        options, "threshold", [50], lambda testbed, steps, args: controlled(testbed, steps, args.samples)
    )
