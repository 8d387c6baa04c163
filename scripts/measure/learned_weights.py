"""How much better the weights of `speedup=` could be with the same computed ticks: learned by gradients, on four samples, through whole runs.

`python scripts/measure/learned_weights.py` writes evals/results/learned_weights/<testbed>.json, in about twenty minutes.
"""

from diffcache.evals.experiments.learned_weights import LEARNED_ON, learned
from diffcache.evals.harness.command_line import measure_at_steps, parser_for_testbeds

NAMES = ("flux", "pixart", "sana", "sd3")
"""Those whose runs take little, and whose pipelines give latents."""


if __name__ == "__main__":
    measure_at_steps(
        parser_for_testbeds(__doc__, samples=16, names=NAMES),
        "learned_weights",
        [50],
        lambda testbed, steps, args: [
            learned(testbed, steps, speedup, args.samples) for speedup in (3.0, 4.0)
        ],
        learned_on=LEARNED_ON,
    )
