"""Measures every kernel at the sizes of FLUX, Wan and LLaDA: `python scripts/benchmark/gpu_kernels.py` on a machine with a GPU.

A kernel whose results differ from its reference's gets no figure, and the script fails.
"""

import sys
from pathlib import Path

import torch

from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import result_path, write_result
from diffcache.evals.kernels.benchmark import Refusal, measure, row
from diffcache.evals.kernels.cases import cases


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--json", type=Path, default=result_path("kernels", "gpu"))
    args = options.parse_args()
    if not torch.cuda.is_available():
        options.error("kernels are measured on a CUDA device, and there is none.")
    from triton.testing import do_bench

    torch.manual_seed(0)
    torch.set_default_device("cuda")
    rows, refused = [], False
    for case in cases():
        outcome = measure(case, lambda call: 1e-3 * do_bench(call, return_mode="median"))
        rows.append(row(outcome))
        if isinstance(outcome, Refusal):
            refused = True
            print(f"{case.model:13s} {case.name:30s} REFUSED: {outcome.difference.splitlines()[0]}")
        else:
            print(
                f"{case.model:13s} {case.name:30s} {outcome.bytes_per_second / 1e12:6.3f} TB/s"
                f"  {outcome.share_of_copy:6.1%} of a copy  {outcome.over_eager:5.2f}x eager"
                f"  {outcome.over_compiled:5.2f}x compiled  {'' if outcome.meets_targets else 'below target'}"
            )
        torch.cuda.empty_cache()
    write_result(args.json, header("cuda"), {"rows": rows})
    if refused:
        sys.exit("Some kernels disagree with their references.")


if __name__ == "__main__":
    main()
