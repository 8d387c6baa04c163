"""What `speedup=` gives on testbeds, beside as many evenly spread ticks.

`python scripts/measure/targets.py --testbeds flux dit` writes evals/results/targets/<testbed>.json. What `quality=` keeps is measured by
scripts/measure/promises.py.
"""

from diffcache.evals.experiments.targets import measured
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds

if __name__ == "__main__":
    measure_testbeds(
        parser_for_testbeds(__doc__), "targets", lambda testbed, args: measured(testbed, args.samples)
    )
