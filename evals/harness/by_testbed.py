"""A measurement of one testbed after another, as a command line that writes a file for each."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from diffcache.evals.harness.provenance import RESULTS, provenance
from diffcache.evals.testbeds import zoo


def measure_by_testbed(
    description: str | None, name: str, measured: Callable[[str, int], dict[str, Any]]
) -> None:
    """The `main` of a script: reads the arguments, measures on one thread, and writes <name>_<testbed>.json.

    Args:
        description: of the script, for `--help`.
        name: of the measurement.
        measured: what was found, of a testbed's name and the number of samples on each side.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--testbeds", nargs="+", default=zoo.NAMES, choices=zoo.NAMES)
    parser.add_argument("--samples", type=int, default=16, help="on each side")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for testbed in args.testbeds:
        found = measured(testbed, args.samples)
        head = {**provenance("cpu, one thread"), "testbed": testbed, "samples": args.samples}
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{name}_{testbed}.json").write_text(json.dumps({**head, **found}, indent=1) + "\n")
