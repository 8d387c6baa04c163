"""`speedup=` without guidance, with a prior that has not seen the testbed, beside evenly spaced ticks and fewer steps.

`python scripts/measure/unguided.py` writes evals/results/unguided/<testbed>.json, in about twenty minutes.
"""

from diffcache.evals.experiments.trajectory import unguided
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_at_steps, parser_for_testbeds
from diffcache.evals.testbeds import zoo

if __name__ == "__main__":
    names = [name for name in MANY_STEPS if name in zoo.GUIDED]
    options = parser_for_testbeds(__doc__, samples=32, names=names)
    measure_at_steps(
        options, "unguided", [50], lambda testbed, steps, args: unguided(testbed, steps, args.samples)
    )
