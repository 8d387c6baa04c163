"""`speedup=` away from a negative prompt that resembles the prompt, planned with the amplification that the first tick shows and with the usual one.

`python scripts/measure/weak_guidance.py` writes evals/results/weak_guidance/<testbed>.json, in about ten minutes.
"""

from diffcache.evals.experiments.weak_guidance import TESTBEDS, compared
from diffcache.evals.harness.command_line import measure_at_steps, parser_for_testbeds

if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, samples=32, names=TESTBEDS)
    measure_at_steps(
        options, "weak_guidance", [50], lambda testbed, steps, args: compared(testbed, steps, args.samples)
    )
