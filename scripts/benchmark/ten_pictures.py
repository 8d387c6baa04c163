"""Measures what a method with sites inside costs over ten pictures in a row, beside the peers'.

python scripts/benchmark/ten_pictures.py --json evals/results/ten_pictures/cpu.json
"""

from pathlib import Path

import torch

from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import write_result
from diffcache.evals.speed.ten_pictures import PICTURES, TICKS, measure


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=12, help="series of ten pictures")
    options.add_argument("--blocks", type=int, nargs=2, default=(19, 38), help="double and single blocks")
    options.add_argument("--json", type=Path, help="file for the figures")
    args = options.parse_args()
    torch.set_num_threads(1)
    rows = measure(args.repeats, *args.blocks)
    for row in rows:
        low, high = row["later_picture_own_95"]
        least, most = row["ten_pictures_own_95"]
        print(
            f"{row['variant']:42s} ten pictures {row['ten_pictures_own_ms']:+8.0f} [{least:+.0f}, {most:+.0f}] ms   first {row['first_picture_own_ms']:+7.0f}"
            f"   later {row['later_picture_own_ms']:+7.1f} [{low:+.1f}, {high:+.1f}] of {row['plain_picture_ms']:.0f}"
        )
    if args.json:
        settings = {
            "repeats": args.repeats,
            "blocks": list(args.blocks),
            "pictures": PICTURES,
            "ticks": TICKS,
        }
        write_result(args.json, header(), {**settings, "rows": rows})


if __name__ == "__main__":
    main()
