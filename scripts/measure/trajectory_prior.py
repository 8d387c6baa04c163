"""Fits the universal prior of the method `trajectory` on all testbeds, and one more for each testbed that is left out.

`python scripts/measure/trajectory_prior.py` writes diffcache/trajectory/prior.json, and evals/results/trajectory_prior/<testbed>.json
with what has never seen this testbed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from tqdm import tqdm

from diffcache.evals.experiments.curves import Answered, averaged, averaged_response
from diffcache.evals.experiments.trajectory_prior import (
    FITTED_ON,
    Measured,
    Setting,
    changes,
    fitted,
    measured,
    settings,
)
from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import result_path, write_result
from diffcache.trajectory.prior import SHIPPED
from diffcache.trajectory.response import of_flow


def main() -> None:
    parser(__doc__).parse_args()
    runs = {setting: measured(setting) for setting in tqdm([*chain(*map(settings, FITTED_ON))], desc="runs")}
    loss, figures = _fitted(FITTED_ON, runs)
    SHIPPED.write_text(json.dumps({**header(), **figures}, indent=2) + "\n")
    print(f"all: {loss:.3f}")
    for name in FITTED_ON:
        others = [other for other in FITTED_ON if other != name]
        loss, figures = _fitted(others, runs)
        write_result(result_path("trajectory_prior", name), header(), figures)
        print(f"without {name}: {loss:.3f}")


def _fitted(testbeds: Sequence[str], runs: Mapping[Setting, Measured]) -> tuple[float, dict[str, Any]]:
    """The loss of the kernel's fit, and the figures of a prior."""
    of = {name: [*settings(name)] for name in testbeds}
    kernel, loss = fitted([runs[setting] for setting in chain(*of.values())])
    answers = [
        [
            Answered(run.strength, run.angles, of_flow(run.response, run.moments))
            for run in map(runs.__getitem__, asked)
        ]
        for asked in of.values()
    ]
    paces = [[changes(runs[setting], kernel) for setting in asked] for asked in of.values()]
    return loss, {
        "fitted_on": sorted(testbeds),
        "loss": round(loss, 4),
        "kernel": asdict(kernel),
        "pace": asdict(averaged(paces)),
        "response": asdict(averaged_response(answers)),
    }


if __name__ == "__main__":
    main()
