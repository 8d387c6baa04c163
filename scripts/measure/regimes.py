"""How the default and `speedup=2` do in every regime: prediction, noise scheduler, guidance, number of steps.

`python scripts/measure/regimes.py` writes evals/results/regimes/<prediction>.json, in about half an hour for all. `--only` measures some noise schedulers again.
"""

from pathlib import Path
from typing import Any

import torch

from diffcache.evals.experiments.regimes import measure, regimes
from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import (
    RESULTS,
    Result,
    read_result,
    renewals,
    result_path,
    write_json,
    write_result,
)

PREDICTIONS = ("flow", "v_prediction", "epsilon", "sample")


def with_rows(kept: Result, rows: list[dict[str, Any]], measured: dict[str, Any]) -> Result:
    """A result with some of its rows measured again."""
    again = {_cell(row): row for row in rows}
    names = sorted({row["noise_scheduler"] for row in rows})
    renewed = renewals(kept.get("renewed", []), measured, names)
    return {**kept, "rows": [again.get(_cell(row), row) for row in kept["rows"]], "renewed": renewed}


def _cell(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["noise_scheduler"], row["guidance"], row["steps"]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--predictions", nargs="+", default=PREDICTIONS, choices=PREDICTIONS)
    options.add_argument("--samples", type=int, default=8, help="measured in each regime")
    options.add_argument("--only", nargs="+", help="these noise schedulers; all other rows are kept")
    options.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = options.parse_args()
    torch.set_num_threads(1)  # networks as small as these are slower with more
    for prediction in args.predictions:
        path, rows = result_path("regimes", prediction, args.out), []
        kept = read_result(path) if args.only else None
        for regime in regimes():
            if regime.prediction == prediction and (not args.only or regime.noise_scheduler in args.only):
                rows.append(measure(regime, args.samples))
                print(rows[-1], flush=True)
        figures = {"prediction": prediction, "samples": args.samples, "rows": rows}
        if kept is None:
            write_result(path, header(), figures)
        else:
            write_json(path, with_rows(kept, rows, header()))


if __name__ == "__main__":
    main()
