"""Measures what a cache costs while it skips nothing: its own time per tick, beside the peers', on one model.

python scripts/benchmark/peers.py --json evals/results/engine_beside_peers/cpu.json
"""

from pathlib import Path

import torch

from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import write_result
from diffcache.evals.speed.beside_peers import compared, measure


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--json", type=Path, help="file for the figures")
    args = options.parse_args()
    torch.set_num_threads(1)
    rows = compared(measure(args.rounds))
    for row in rows:
        low, high = row["interval_95_ms"]
        print(
            f"{row['variant']:42s} tick {row['tick_ms']:7.2f} ms   own {row['own_ms']:+6.2f} ms "
            f"[{low:+.2f}, {high:+.2f}]   {row['own_share']:+.1%}"
        )
    if args.json:
        write_result(args.json, header(), {"rounds": args.rounds, "rows": rows})


if __name__ == "__main__":
    main()
