"""Races our methods and the peers' on the testbeds, and writes every measurement to evals/results/race/<testbed>.json.

    python scripts/measure/race.py --testbeds sd3
    python scripts/measure/race.py --quick

A race that was interrupted goes on where it was. The peers are the real packages: pip install "diffcache[evals,peers]".
"""

import os
from pathlib import Path

import diffusers
import torch
import transformers

from diffcache.evals.harness.command_line import parser_for_testbeds
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import result_path
from diffcache.evals.testbeds import zoo

KEPT = Path("outputs") / "race"
"""Pictures of 1000 steps are kept here."""


QUICK = "sd3"
QUICK_BUDGET = 2.0


def agrees(path: Path) -> int:
    """Measures `accelerate(pipe, speedup=2)` again: 0 where it comes out within the interval that was published, else 1."""
    from diffcache.evals.race import ours
    from diffcache.evals.race.again import measured_again
    from diffcache.evals.race.everybody import EVERYBODY

    contender = next(one for one in EVERYBODY if one.name == ours.SPEEDUP)
    cell = measured_again(path, contender, QUICK_BUDGET)
    print(
        f"{QUICK}, {contender.name} at {QUICK_BUDGET:g}x: published {cell.published:.2f} dB [{cell.low:.2f}, {cell.high:.2f}], "
        f"now {cell.again:.2f} dB: {'agrees' if cell.agrees else 'DOES NOT AGREE'}"
    )
    return 0 if cell.agrees else 1


def main() -> None:
    parser = parser_for_testbeds(__doc__, samples=None, names=zoo.ALL)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="full names of the contenders to race")
    parser.add_argument(
        "--quick", action="store_true", help="measure one cell again, and check that it agrees"
    )
    parser.add_argument(
        "--no-truth", action="store_true", help="compare with the full run only, and not with 1000 steps too"
    )
    args = parser.parse_args()
    os.environ.setdefault("CACHE_DIT_LOG_LEVEL", "error")  # it logs eight lines whenever it is attached
    from diffcache.evals.race.contender import RaceSetup
    from diffcache.evals.race.everybody import EVERYBODY
    from diffcache.evals.race.result import EXPERIMENT
    from diffcache.evals.race.run import Race

    torch.set_num_threads(1)
    zoo.place(args.device)
    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    if args.quick:
        raise SystemExit(agrees(result_path(EXPERIMENT, QUICK, args.out)))
    racing = [one for one in EVERYBODY if args.only is None or one.full_name in args.only]
    for testbed in args.testbeds:
        setup = RaceSetup(testbed, zoo.STEPS.get(testbed, 50))
        path = result_path(EXPERIMENT, testbed, args.out)
        Race(setup, path, header(args.device), None if args.no_truth else KEPT).run(racing)


if __name__ == "__main__":
    main()
