"""Measures every kernel at the sizes of FLUX, Wan and LLaDA: `python scripts/benchmark/gpu_kernels.py` on a machine with a GPU.

A kernel whose results differ from its reference's gets no figure, and the script fails.
"""

import sys
from pathlib import Path

import torch

from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import result_path, write_result
from diffcache.evals.kernels.benchmark import Refusal, graph_seconds, host_seconds, measure, row
from diffcache.evals.kernels.cases import TextSizes, cases

TINY = {"tiny": (1, 64, 96)}, TextSizes(2, 16, 24, 64, 16, 4, 2)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--json", type=Path, default=result_path("kernels", "gpu"))
    options.add_argument("--dry-run", action="store_true", help="small tensors, on the CPU")
    args = options.parse_args()
    if not torch.cuda.is_available() and not args.dry_run:
        options.error("kernels are measured on a CUDA device, and there is none.")
    device = "cpu" if args.dry_run else "cuda"
    torch.manual_seed(0)
    torch.set_default_device(device)
    rows, refused = [], False
    for case in cases(*TINY) if args.dry_run else cases():
        clock = host_seconds if args.dry_run else graph_seconds
        outcome = measure(case, clock, "eager" if args.dry_run else "inductor")
        rows.append(row(outcome))
        write_result(args.json, header(device), {"rows": rows})
        if isinstance(outcome, Refusal):
            refused = True
            print(f"{case.model:13s} {case.name:30s} REFUSED: {outcome.difference.splitlines()[0]}")
        else:
            print(
                f"{case.model:13s} {case.name:30s} {outcome.bytes_per_second / 1e12:6.3f} TB/s"
                f"  {outcome.share_of_copy:6.1%} of a copy  {outcome.host_microseconds:5.0f} us on the host"
                f"  {outcome.over_eager:5.2f}x eager"
                f"  {outcome.over_compiled:5.2f}x compiled  {'' if outcome.meets_targets else 'below target'}",
                flush=True,
            )
        if device == "cuda":
            torch.cuda.empty_cache()
    if refused:
        sys.exit("Some kernels disagree with their references.")


if __name__ == "__main__":
    main()
