"""The peak memory of a guidance pass's first call, beside that of a plain call, for each kind of site; about half a minute.

`python scripts/measure/first_call.py` writes evals/results/first_call/<testbed>.json, for deep denoisers of the testbeds'
families. `--before` puts the figures beside those that are stored, as what they were before a change.
"""

from argparse import Namespace
from typing import Any

import torch

from diffcache.evals.experiments.first_call import DEEP_DENOISERS, as_rows, first_calls
from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import RESULTS, read_result, result_path, write_result

EXPERIMENT = "first_call"


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """The figures now, and those from before the change, where they have been measured."""
    found = first_calls(DEEP_DENOISERS[testbed])
    for one in found:
        print(
            f"{testbed:5s} {one.site:16s} {one.kept_on_top / 1024:8,.0f} KiB beside the plain call and the cache"
        )
    now, path = {"rows": as_rows(found)}, result_path(EXPERIMENT, testbed, RESULTS)
    if args.before:
        return {**now, "before": {"header": header(), **now}}
    return {**now, "before": read_result(path)["before"]} if path.exists() else now


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--before", action="store_true", help="store the figures as those before a change")
    args = options.parse_args()
    torch.set_num_threads(1)
    for testbed in DEEP_DENOISERS:
        write_result(result_path(EXPERIMENT, testbed, RESULTS), header(), measured(testbed, args))


if __name__ == "__main__":
    main()
