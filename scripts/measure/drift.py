"""How well the report's estimate of the error predicts the error: rank correlation over seeds and budgets.

`python scripts/measure/drift.py --testbeds flux dit` writes evals/results/drift/<testbed>.json.
"""

from diffcache.evals.experiments.drift import measured
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds

if __name__ == "__main__":
    measure_testbeds(
        parser_for_testbeds(__doc__, samples=8),
        "drift",
        lambda testbed, args: measured(testbed, args.samples),
    )
