"""Fits the universal prior of the method `trajectory` on all testbeds, and one more for each testbed that is left out.

`python scripts/measure/trajectory_prior.py` writes diffcache/trajectory/prior.json, and evals/results/trajectory_prior/<testbed>.json
with the kernel that has never seen this testbed.
"""

import json
from dataclasses import asdict

from tqdm import tqdm

from diffcache.evals.experiments.trajectory_prior import MANY_STEPS, fitted, measured, settings
from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import result_path, write_result
from diffcache.trajectory.kernel import PRIOR


def main() -> None:
    parser(__doc__).parse_args()
    runs = [measured(setting) for setting in tqdm(list(settings()), desc="runs")]
    kernel, loss = fitted(runs)
    facts = {**header(), "fitted_on": list(MANY_STEPS), "loss": round(loss, 4), "kernel": asdict(kernel)}
    PRIOR.write_text(json.dumps(facts, indent=2) + "\n")
    print(f"all: {loss:.3f}")
    for name in MANY_STEPS:
        kept = [run for run in runs if run.testbed != name]
        kernel, loss = fitted(kept)
        figures = {"fitted_on": sorted({run.testbed for run in kept}), "kernel": asdict(kernel)}
        write_result(result_path("trajectory_prior", name), header(), figures)
        print(f"without {name}: {loss:.3f}")


if __name__ == "__main__":
    main()
