"""Caches on the language testbed: how exactly they write and how much they compute, or how fast they are.

`python scripts/measure/language.py accuracy --decoding blocks --rules threshold --json out.json`
`python scripts/measure/language.py speed --batches 1 8 --json out.json`
`python scripts/measure/language.py host --json out.json` kernels, operations and time of a call at 32 layers
`python scripts/measure/language.py bound --batches 1 --json out.json` what a cache gains, against what its operations allow
`python scripts/measure/language.py staleness --texts 48 --json out.json` goes on where an earlier command stopped
"""

from pathlib import Path

import torch

from diffcache.evals.harness.command_line import parser
from diffcache.evals.language import benchmark
from diffcache.evals.language.commands import COMMANDS
from diffcache.evals.language.model_shapes import SHAPES


def main() -> None:
    options = parser(__doc__)
    options.add_argument("what", choices=COMMANDS)
    options.add_argument("--decoding", choices=benchmark.DECODINGS, default="blocks")
    options.add_argument("--rules", nargs="+", choices=benchmark.RULES, default=["quota", "threshold"])
    options.add_argument("--only", nargs="+", help="these caches, beside the plain model")
    options.add_argument("--unpaired", action="store_true", help="without the plain model (accuracy only)")
    options.add_argument("--prompts", type=int, default=512)
    options.add_argument("--layers", type=int, default=32, help="of the model (host only)")
    options.add_argument("--texts", type=int, default=48, help="of each point (staleness only)")
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument(
        "--model",
        choices=["testbed", *SHAPES],
        default="testbed",
        help="the others have random weights: for speed, and with the rule that asks for no confidence, quota",
    )
    options.add_argument("--device", default="cpu", help="speed only")
    options.add_argument("--workers", type=int, default=2, help="processes that write (accuracy only)")
    options.add_argument("--json", type=Path)
    args = options.parse_args()
    torch.set_num_threads(1)
    COMMANDS[args.what](args)


if __name__ == "__main__":
    main()
