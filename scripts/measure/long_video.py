"""Rollouts of ten times the trained length on the causal testbed, by policy: quality, bytes and time along the video.

`python scripts/measure/long_video.py` writes evals/results/long_video/causal_wan_<policy>.json, in about eight CPU minutes.
"""

import torch

from diffcache.evals.experiments import long_video
from diffcache.evals.harness.command_line import parser_for_testbeds
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import result_path, write_result

TESTBED = "causal_wan"
NAMES = (long_video.REAL, *long_video.POLICIES)


def main() -> None:
    options = parser_for_testbeds(__doc__, samples=16, names=(TESTBED,))
    options.add_argument("--policies", nargs="+", default=NAMES, choices=NAMES)
    args = options.parse_args()
    torch.set_num_threads(1)
    settings = {
        "testbed": TESTBED,
        "samples": args.samples,
        "frames": long_video.FRAMES,
        "window": long_video.WINDOW,
    }
    for name in args.policies:
        row = long_video.measured(name, args.samples)
        print(row, flush=True)
        write_result(result_path("long_video", f"{TESTBED}_{name}", args.out), header(), {**settings, **row})


if __name__ == "__main__":
    main()
