"""Races our methods and the peers' on the testbeds, and writes every lap to evals/results/race_<testbed>.json.

    python scripts/measure/race.py --testbeds flux --samples 8

The peers are the real packages: pip install "diffcache[evals,peers]".
"""

import argparse
import os
from pathlib import Path

import diffusers
import torch
import transformers

from diffcache.evals.harness.provenance import RESULTS, provenance
from diffcache.evals.testbeds import zoo

STEPS = 50
"""The settings that name ticks are for this many."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--testbeds", nargs="+", default=zoo.NAMES, choices=zoo.NAMES)
    parser.add_argument("--samples", type=int, default=16, help="seeds per testbed")
    parser.add_argument(
        "--rounds", type=int, default=3, help="pairs of renderings per loop time; 0: no times"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="race these anew; all other laps stay as they are in --out"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    os.environ.setdefault("CACHE_DIT_LOG_LEVEL", "error")  # eight lines for each attachment
    from diffcache.evals.race.ours import CONTENDERS
    from diffcache.evals.race.outcome import Outcome
    from diffcache.evals.race.peers import PEERS
    from diffcache.evals.race.running import run_race
    from diffcache.evals.race.verdict import sweep_table, verdict_table

    torch.set_num_threads(1)
    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    everybody = (*CONTENDERS, *PEERS)
    unknown = {*(args.only or ())} - {contender.name for contender in everybody}
    if unknown:
        parser.error(f"nobody is called {', '.join(sorted(unknown))}")
    racing = [contender for contender in everybody if args.only is None or contender.name in args.only]
    for testbed in args.testbeds:
        outcome = run_race(
            testbed,
            racing,
            samples=args.samples,
            steps=STEPS,
            rounds=args.rounds,
            provenance=provenance("cpu, one thread"),
        )
        path = args.out / f"race_{testbed}.json"
        if args.only is not None:
            outcome = Outcome.load(path).renewed(outcome, [f"{c.package}: {c.name}" for c in racing])
        outcome.save(path)
        print(f"\n## {testbed}\n\n{verdict_table([outcome])}\n\n{sweep_table(outcome)}\n")
        for name, why in outcome.refused.items():
            print(f"{name} does not take part: {why}")
        print(f"written to {path}")


if __name__ == "__main__":
    main()
