"""What each part of ERTACache gives on the testbeds at equal compute, beside even ticks, EasyCache and fewer steps.

`python scripts/measure/ertacache.py --testbeds flux dit` writes evals/results/ertacache/<testbed>.json.
"""

from argparse import Namespace
from dataclasses import asdict
from typing import Any

from diffcache.evals.experiments.ertacache import STEPS, Ablation
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    ablation, rows = Ablation(testbed, args.samples), []
    for row in ablation.rows():
        print(f"{testbed}: {row}", flush=True)
        rows.append(asdict(row))
    return {"steps": STEPS, "cpu_seconds_of_calibration": round(ablation.cpu_seconds, 1), "rows": rows}


if __name__ == "__main__":
    measure_testbeds(parser_for_testbeds(__doc__), "ertacache", measured)
