"""Whether `tune(quality=, at_least=)` keeps its promise on prompts and seeds that it has not seen, and how much it gives away.

`python scripts/measure/promises.py` writes evals/results/promises/<testbed>.json for four testbeds that the kernel was fitted without.
"""

from diffcache.evals.experiments.promises import TESTBEDS, measured
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds
from diffcache.evals.testbeds import zoo

if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=32, names=zoo.ALL)
    options.set_defaults(testbeds=TESTBEDS)
    measure_testbeds(options, "promises", lambda testbed, args: measured(testbed, args.samples))
