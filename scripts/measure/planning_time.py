"""How long `trajectory` plans before a run.

`python scripts/measure/planning_time.py` writes evals/results/planning_time/<testbed>.json, in about two minutes.
"""

from diffcache.evals.experiments.planning_time import planning_times
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS
from diffcache.evals.harness.command_line import measure_at_steps, parser_for_testbeds

if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=None, names=MANY_STEPS)
    measure_at_steps(
        options,
        "planning_time",
        [20, 28, 50, 100],
        lambda testbed, steps, args: [planning_times(testbed, steps)],
    )
