"""How long TaylorSeer takes by the place where it reuses, ours and Diffusers': processor time of the loop over the full run's, in turns.

`python scripts/measure/taylorseer_time.py` prints a line for each place, in some minutes.
"""

import torch

from diffcache.evals.experiments.taylorseer_time import measured
from diffcache.evals.harness.command_line import parser


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--testbed", default="flux", choices=("flux", "wan", "kontext"))
    options.add_argument("--rounds", type=int, default=5)
    args = options.parse_args()
    torch.set_num_threads(1)
    for place, share in measured(args.testbed, args.rounds):
        print(f"{place}: {share:.1%}", flush=True)


if __name__ == "__main__":
    main()
