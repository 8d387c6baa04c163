"""What it costs to store the cache in fewer bits: bytes and PSNR to the full run for each format, at half of the compute.

`python scripts/measure/formats.py` writes evals/results/formats/<testbed>.json.
"""

from diffcache.evals.experiments.formats import measured
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds

if __name__ == "__main__":
    measure_testbeds(
        parser_for_testbeds(__doc__), "formats", lambda testbed, args: measured(testbed, args.samples)
    )
