"""Races our methods and the peers' on the testbeds, and writes every measurement to evals/results/race/<testbed>.json.

    python scripts/measure/race.py --testbeds flux --samples 8

The peers are the real packages: pip install "diffcache[evals,peers]".
"""

import os

import diffusers
import torch
import transformers

from diffcache.evals.harness.command_line import parser_for_testbeds
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import result_path

STEPS = 50
"""Of the full run; settings that are numbers of ticks are chosen for it."""


def main() -> None:
    parser = parser_for_testbeds(__doc__)
    parser.add_argument(
        "--rounds", type=int, default=3, help="pairs of renderings for each loop time; 0: no times"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="race these again; all other rows stay as they are in --out"
    )
    args = parser.parse_args()
    os.environ.setdefault("CACHE_DIT_LOG_LEVEL", "error")  # it logs eight lines whenever it is attached
    from diffcache.evals.race.ours import CONTENDERS
    from diffcache.evals.race.peers import PEERS
    from diffcache.evals.race.result import EXPERIMENT, RaceResult
    from diffcache.evals.race.run import run_race
    from diffcache.evals.tables.race import margin_table, measurement_table

    torch.set_num_threads(1)
    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    everybody = (*CONTENDERS, *PEERS)
    unknown = {*(args.only or ())} - {contender.name for contender in everybody}
    if unknown:
        parser.error(f"no contender is called {', '.join(sorted(unknown))}")
    racing = [contender for contender in everybody if args.only is None or contender.name in args.only]
    for testbed in args.testbeds:
        path = result_path(EXPERIMENT, testbed, args.out)
        result = run_race(
            testbed, racing, samples=args.samples, steps=STEPS, rounds=args.rounds, header=header()
        )
        if args.only is not None:
            names = [contender.full_name for contender in racing]
            result = RaceResult.load(path).with_rows_of(result, names)
        result.save(path)
        print(f"\n## {testbed}\n\n{margin_table([result])}\n\n{measurement_table(result)}\n")
        for name, why in result.refused.items():
            print(f"{name} does not take part: {why}")
        print(f"written to {path}")


if __name__ == "__main__":
    main()
