"""The default and `speedup=` on the testbeds on which nothing was fitted, against as many plain steps.

`python scripts/measure/judging.py` writes evals/results/judging/<testbed>.json, in about ten minutes.
"""

import torch

from diffcache.evals.experiments.judging import judged
from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import RESULTS, result_path, write_result
from diffcache.evals.testbeds import zoo


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--testbeds", nargs="+", default=zoo.JUDGING, choices=zoo.JUDGING)
    options.add_argument("--samples", type=int, default=16, help="measured on each testbed")
    options.add_argument("--out", type=type(RESULTS), default=RESULTS, help="folder of the results")
    args = options.parse_args()
    torch.set_num_threads(1)  # networks as small as these are slower with more
    for testbed in args.testbeds:
        lengths = sorted({zoo.STEPS[testbed], 50})
        rows = [row for steps in lengths for row in judged(testbed, steps, args.samples)]
        figures = {"testbed": testbed, "samples": args.samples, "rows": rows}
        write_result(result_path("judging", testbed, args.out), header(), figures)


if __name__ == "__main__":
    main()
