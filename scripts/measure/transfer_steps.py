"""The method `trajectory` with a covariance that was measured in another number of steps.

It is beside the universal prior that has not seen the testbed, a covariance of that very number of steps, and evenly spaced ticks.
`python scripts/measure/transfer_steps.py` writes evals/results/transfer_steps/<testbed>.json, in about fifteen minutes.
"""

from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.experiments.transfer_steps import compared
from diffcache.evals.harness.command_line import measure_at_steps, parser_for_testbeds

MEASURED_IN = 28

if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, names=MANY_STEPS)
    measure_at_steps(
        options,
        "transfer_steps",
        [50, 20],
        lambda testbed, steps, args: compared(testbed, MEASURED_IN, steps, args.samples),
    )
