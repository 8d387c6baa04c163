"""Measures first ticks of methods with sites inside: of a denoiser's first run, and of later runs.

python scripts/benchmark/first_ticks.py --json evals/results/first_ticks/cpu.json
"""

from pathlib import Path

import torch

from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import write_result
from diffcache.evals.speed.first_ticks import measure, rows_of


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=25)
    options.add_argument("--json", type=Path, help="file for the figures")
    args = options.parse_args()
    torch.set_num_threads(1)
    rows = rows_of(measure(args.rounds))
    for row in rows:
        (low, high), (later_low, later_high) = row["first_tick_95"], row["later_runs_first_tick_95"]
        print(
            f"{row['method']:30s} first {row['first_tick']:.2f} x plain [{low:.2f}, {high:.2f}]   "
            f"in later runs {row['later_runs_first_tick'] - 1:+.1%} of a later tick "
            f"[{later_low - 1:+.1%}, {later_high - 1:+.1%}]"
        )
    if args.json:
        write_result(args.json, header(), {"rounds": args.rounds, "rows": rows})


if __name__ == "__main__":
    main()
