"""Compares the raced methods' pictures with real ones, and writes evals/results/race_fid/fashion.json: FID, KID, precision, recall.

    python scripts/measure/race_fid.py
    python scripts/measure/race_fid.py --only "full run" "fewer steps"

Settings are those that evals/results/race/fashion.json chose. Features of finished calls are kept for each commit; a measurement that was
interrupted goes on where it was.
"""

import os
from pathlib import Path

import torch

from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import RESULTS, result_path

KEPT = Path("outputs") / "race_fid"


def main() -> None:
    os.environ.setdefault("CACHE_DIT_LOG_LEVEL", "error")  # it logs eight lines whenever it is attached
    from diffcache.evals.race import result as race
    from diffcache.evals.race.distributions import EXPERIMENT, SAMPLES, TESTBED, Distributions
    from diffcache.evals.race.entries import TITLES

    options = parser(__doc__)
    options.add_argument("--only", nargs="+", metavar="NAME", default=TITLES, choices=TITLES)
    options.add_argument("--samples", type=int, default=SAMPLES, help="pictures of each")
    options.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    args = options.parse_args()
    torch.set_num_threads(1)  # networks as small as these are slower with more
    raced = race.RaceResult.load(result_path(race.EXPERIMENT, TESTBED))
    path, made = result_path(EXPERIMENT, TESTBED, args.out), header()
    Distributions(raced, path, made, KEPT / str(made["commit"]), args.samples).run(args.only)


if __name__ == "__main__":
    main()
