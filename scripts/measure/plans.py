"""How good the plans of `speedup=` are beside evenly spaced ticks and plans with the pipeline's own covariance, by what was measured of it.

`python scripts/measure/plans.py` writes evals/results/plans/<testbed>.json, in about ten minutes. One more computed tick can change a picture by 5 dB
either way, so a rule for plans is judged by all numbers of ticks. `trajectory.py` draws four of them.
"""

from diffcache.evals.experiments.plans import planned
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_at_steps, parser_for_testbeds

if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=None, names=MANY_STEPS)
    measure_at_steps(options, "plans", [50, 28, 20], lambda testbed, steps, args: planned(testbed, steps))
