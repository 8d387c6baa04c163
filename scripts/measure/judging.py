"""The default and `speedup=` on the testbeds on which nothing was fitted, against as many plain steps.

`python scripts/measure/judging.py` writes evals/results/judging/<testbed>.json, in about ten minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments.judging import judged
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds
from diffcache.evals.testbeds import splits, zoo

FEW = 10
"""With fewer steps of its own a pipeline was distilled to them, and more would tell nothing."""


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The rows at the pipeline's own number of steps, and at 50 unless it was distilled to few."""
    own = zoo.STEPS[testbed]
    lengths = [own] if own < FEW else sorted({own, 50})
    return {"rows": [row for steps in lengths for row in judged(testbed, steps, args.samples)]}


if __name__ == "__main__":
    measure_testbeds(parser_for_testbeds(__doc__, names=splits.JUDGING), "judging", measured)
