"""How the default and `speedup=2` do in every regime: prediction, noise scheduler, guidance, number of steps.

`python scripts/measure/regimes.py` writes evals/results/regimes/<prediction>.json, in about half an hour for all.
"""

from pathlib import Path

import torch

from diffcache.evals.experiments.regimes import measure, regimes
from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import RESULTS, result_path, write_result

PREDICTIONS = ("flow", "v_prediction", "epsilon", "sample")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--predictions", nargs="+", default=PREDICTIONS, choices=PREDICTIONS)
    options.add_argument("--samples", type=int, default=8, help="measured in each regime")
    options.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = options.parse_args()
    torch.set_num_threads(1)  # networks as small as these are slower with more
    for prediction in args.predictions:
        rows = []
        for regime in regimes():
            if regime.prediction == prediction:
                rows.append(measure(regime, args.samples))
                print(rows[-1], flush=True)
        figures = {"prediction": prediction, "samples": args.samples, "rows": rows}
        write_result(result_path("regimes", prediction, args.out), header(), figures)


if __name__ == "__main__":
    main()
