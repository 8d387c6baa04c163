"""Compares methods on testbeds at equal compute: PSNR to the full run and to 1000 steps, beside the plain pipeline with
fewer steps.

`python scripts/measure/methods.py --testbeds dit flux` writes evals/results/methods/<testbed>.json; on a GPU
(`--device cuda`) it writes evals/results/methods_gpu/.
"""

from argparse import Namespace
from typing import Any

import torch

from diffcache.evals.experiments.methods import all_rows, comparison_on, settings, with_rows_of
from diffcache.evals.harness.command_line import parser_for_testbeds
from diffcache.evals.harness.comparison import SHARES, TOLERANCE, as_json, nearest, table
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import read_result, result_path, write_result
from diffcache.evals.testbeds import zoo


def arguments() -> Namespace:
    parser = parser_for_testbeds(__doc__, samples=32)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="ROW",
        help="measure these rows again; the other rows stay as they are in --out",
    )
    args = parser.parse_args()
    unknown = {*(args.only or ())} - {name for name, _ in settings()}
    if unknown:
        parser.error(f"no row is called {', '.join(sorted(unknown))}")
    return args


def figures(testbed: str, args: Namespace) -> dict[str, Any]:
    rows = all_rows(testbed, comparison_on(testbed, args.samples, args.steps))
    print(f"\n### {testbed}: everything\n\n{table(rows)}\n")
    for share in SHARES:
        print(f"### {testbed}: at {share:.0%} of the compute, give or take {TOLERANCE:.0%}\n")
        best_first = sorted(nearest(rows, share).values(), key=lambda row: -row.psnr_full)
        print(table(best_first) + "\n")
    return {"testbed": testbed, "samples": args.samples, "steps": args.steps, "rows": as_json(rows)}


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    zoo.place(args.device)
    for testbed in args.testbeds:
        path = result_path("methods" if args.device == "cpu" else "methods_gpu", testbed, args.out)
        if args.only is None:
            write_result(path, header(args.device), figures(testbed, args))
            continue
        stored = read_result(path)
        comparison = comparison_on(testbed, stored["samples"], stored["steps"])
        renewed = with_rows_of(stored, comparison, args.only, header(args.device))
        write_result(path, renewed.pop("header"), renewed)


if __name__ == "__main__":
    main()
