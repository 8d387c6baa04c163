"""What hindsight gives: the same methods without and with it, at as many computed ticks, on the testbeds.

`python scripts/measure/hindsight.py` writes evals/results/hindsight/<testbed>.json. No testbed predicts the noise. For sd
there are rows for a network that does: the same network with its output converted.
"""

from diffcache.evals.experiments.hindsight import measured
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds

if __name__ == "__main__":
    measure_testbeds(
        parser_for_testbeds(__doc__), "hindsight", lambda testbed, args: measured(testbed, args.samples)
    )
