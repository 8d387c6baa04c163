"""Draws docs/race/gallery.png: pictures of the race at half of the work.

`python scripts/measure/race_gallery.py` takes the settings from evals/results/race; it runs each once, in about a minute.
"""

import os
from pathlib import Path

import torch

from diffcache.evals.harness.command_line import parser

ROOT = Path(__file__).resolve().parents[2]
TESTBEDS = ("sd3", "fashion", "flux", "kontext")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--testbeds", nargs="+", default=TESTBEDS)
    options.add_argument("--budget", type=float, default=2.0, help="times less compute")
    args = options.parse_args()
    os.environ.setdefault("CACHE_DIT_LOG_LEVEL", "error")
    from diffcache.evals.race.gallery import draw_gallery
    from diffcache.evals.tables.pages import race_results

    torch.set_num_threads(1)
    raced = [result for result in race_results() if result.testbed in args.testbeds]
    print(draw_gallery(raced, args.budget, ROOT / "docs" / "race" / "gallery.png"))


if __name__ == "__main__":
    main()
