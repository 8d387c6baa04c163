"""Rollouts of ten times the trained length on the causal testbed, by policy: quality, bytes and time along the video.

`python scripts/measure/long_video.py` writes evals/results/long_video/causal_wan.json, in about 15 CPU minutes.
"""

import torch

from diffcache.evals.experiments import long_video
from diffcache.evals.harness.command_line import parser_for_testbeds
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import result_path, write_result

TESTBED = "causal_wan"


def main() -> None:
    args = parser_for_testbeds(__doc__, samples=16, names=(TESTBED,)).parse_args()
    torch.set_num_threads(1)
    settings = {
        "testbed": TESTBED,
        "samples": args.samples,
        "frames": long_video.FRAMES,
        "window": long_video.WINDOW,
    }
    rows = []
    for row in long_video.measured(args.samples):
        rows.append(row)
        print(row, flush=True)
        write_result(result_path("long_video", TESTBED, args.out), header(), {**settings, "rows": rows})


if __name__ == "__main__":
    main()
