"""How far expected errors are from measured ones, and whether it helps to know the pipeline's own covariance and response.

`python scripts/measure/expected_errors.py` writes evals/results/expected_errors/<testbed>.json, in about twenty minutes.
"""

from diffcache.evals.experiments.expected_errors import compared
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_at_steps, parser_for_testbeds

if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=32, names=MANY_STEPS)
    measure_at_steps(
        options,
        "expected_errors",
        [50, 28],
        lambda testbed, steps, args: compared(testbed, steps, args.samples),
    )
