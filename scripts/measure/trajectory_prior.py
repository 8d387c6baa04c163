"""Fits the universal prior of the method `trajectory` on all testbeds, and one more for each testbed that is left out.

`python scripts/measure/trajectory_prior.py` writes diffcache/trajectory/prior.json, and evals/results/trajectory_prior/<testbed>.json
with what has never seen this testbed. The sensitivities are those of `scripts/measure/sensitivity.py`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from diffcache.evals.experiments.sensitivity import Felt, averaged
from diffcache.evals.experiments.trajectory_prior import MANY_STEPS, Measured, fitted, measured, settings
from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import result_path, stored, write_result
from diffcache.trajectory.prior import SHIPPED


def main() -> None:
    parser(__doc__).parse_args()
    runs = [measured(setting) for setting in tqdm(list(settings()), desc="runs")]
    sensitivities = {name: result["rows"] for name, result in stored("sensitivity").items()}
    loss, figures = _fitted(runs, sensitivities)
    SHIPPED.write_text(json.dumps({**header(), **figures}, indent=2) + "\n")
    print(f"all: {loss:.3f}")
    for name in MANY_STEPS:
        loss, figures = _fitted(
            [run for run in runs if run.testbed != name],
            {other: rows for other, rows in sensitivities.items() if other != name},
        )
        write_result(result_path("trajectory_prior", name), header(), figures)
        print(f"without {name}: {loss:.3f}")


def _fitted(
    runs: Sequence[Measured], sensitivities: Mapping[str, Sequence[Felt]]
) -> tuple[float, dict[str, Any]]:
    """The loss of the kernel's fit, and the figures of a prior."""
    kernel, loss = fitted(runs)
    return loss, {
        "fitted_on": sorted({run.testbed for run in runs}),
        "loss": round(loss, 4),
        "kernel": asdict(kernel),
        "sensitivity": asdict(averaged(sensitivities.values())),
    }


if __name__ == "__main__":
    main()
