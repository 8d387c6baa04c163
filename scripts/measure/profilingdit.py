"""What ProfilingDiT gives on the testbeds that are made of blocks, beside even reuse of the whole denoiser at its compute.

`python scripts/measure/profilingdit.py` writes evals/results/profilingdit/<testbed>.json.
"""

from diffcache.evals.experiments.profilingdit import measured
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds

if __name__ == "__main__":
    measure_testbeds(
        parser_for_testbeds(__doc__, names=("dit", "flux", "wan")),
        "profilingdit",
        lambda testbed, args: measured(testbed, args.samples),
    )
