"""Searches schedules on some prompts, and compares them on others with what they have to beat.

`python scripts/search/schedule.py dit --method evolution --candidates 60 --compute 0.5 0.34 --out outputs/dit` (the testbeds
dit, flux, wan and sd have prompts of their own for this; another testbed, a folder or a hub id needs --prompts). With `accelerate
launch` before it several processes share evolution and router training.
"""

import argparse
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from diffcache.evals.experiments.objectives import kid_to_full, minus_clip
from diffcache.evals.experiments.schedule_search import Evolution, RouterTraining, Search, compared, searched
from diffcache.evals.harness.calls import Split, of_prompts, of_testbed
from diffcache.evals.harness.command_line import MODEL, needs_prompts, parser, run, whole
from diffcache.evals.harness.comparison import Comparison, as_json, table
from diffcache.evals.harness.prompts import read_prompts
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.quality import kid_to_real
from diffcache.evals.harness.results import write_result
from diffcache.evals.testbeds import splits
from diffcache.profiling.recording.processes import is_first
from diffcache.profiling.searching.confirming import FEWEST
from diffcache.profiling.searching.evolving import Budget
from diffcache.profiling.searching.fronts import saved_schedules
from diffcache.profiling.searching.scoring import Loss, minus_psnr, wall_time
from diffcache.profiling.searching.space import EXTRAPOLATE, HOLD

PREDICTORS: dict[str, Mapping[str, Any]] = {"hold": HOLD, "order-1": EXTRAPOLATE}


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("model", help=MODEL)
    options.add_argument(
        "--method",
        default="dp",
        choices=["dp", "evolution", "router", "saved"],
        help="evolution and router begin with dp; saved: compare what lies in --out",
    )
    options.add_argument("--predictor", default="hold", choices=list(PREDICTORS))
    options.add_argument("--hindsight", action="store_true", help="for whole denoisers")
    options.add_argument("--sites", default="model", help="model, sub-layer, or any other kind of site")
    options.add_argument(
        "--compute", type=float, nargs="+", default=[0.5, 0.34], help="shares of the full run's work"
    )
    options.add_argument("--generations", type=whole, help="evolution ends after so many")
    options.add_argument("--candidates", type=whole, help="evolution ends after rendering so many")
    options.add_argument("--minutes", type=float, help="evolution ends after so many")
    options.add_argument("--population", type=whole, default=24, help="tables that survive a generation")
    options.add_argument("--polish", type=whole, help="candidates of a local search after dp, for each share")
    options.add_argument("--quality", default="psnr", choices=["psnr", "kid", "clip"], help="of candidates")
    options.add_argument("--clip", nargs="+", help="model and weights, as for scripts/evaluate.py")
    options.add_argument("--cost", default="compute", choices=["compute", "latency"], help="of candidates")
    options.add_argument("--runs", type=whole, default=200, help="of a router's training")
    options.add_argument("--lr", type=float, default=0.05, help="of a router's training")
    options.add_argument("--begin", type=Path, help="schedule that a router begins with, instead of dp's")
    options.add_argument("--seed", type=int, default=0, help="of evolution and training")
    options.add_argument("--prompts", type=Path, help="a file of them; the first half is searched on")
    options.add_argument("--samples", type=whole, default=4, help="of a testbed to search on")
    options.add_argument(
        "--batch", type=whole, help="samples in a call; several processes share a router's calls"
    )
    options.add_argument(
        "--confirm",
        type=int,
        default=0,
        help="further samples; an evolved schedule replaces dp's only if it is better on these",
    )
    options.add_argument("--held-out", type=whole, default=8, help="samples of a testbed to compare on")
    options.add_argument(
        "--baselines", action="store_true", help="compare with EasyCache, ERTACache and fewer steps too"
    )
    options.add_argument("--kid", action="store_true", help="of a testbed's held-out pictures, to real ones")
    options.add_argument("--steps", type=whole, default=50)
    options.add_argument("--out", type=Path, required=True, help="folder for schedules and checkpoints")
    options.add_argument("--json", type=Path, help="file for the rows")
    args = options.parse_args()
    for message in _conflicts(args):
        options.error(message)
    return args


def _conflicts(args: argparse.Namespace) -> Iterator[str]:
    """Options that do not go together, reported before anything is rendered."""
    if args.hindsight and args.sites != "model":
        yield "--hindsight is for whole denoisers: leave --sites out"
    if args.confirm and args.quality != "psnr":
        yield "--confirm compares by PSNR: leave it out with another --quality"
    if args.confirm and args.method != "evolution":
        yield "--confirm is for --method evolution"
    if args.confirm and args.confirm < FEWEST:
        yield f"--confirm needs at least {FEWEST} samples: fewer confirm nothing"
    if args.method == "router" and args.sites == "model":
        yield "--method router needs sites inside the denoiser: --sites sub-layer"
    if len({f"{share:.0%}" for share in args.compute}) < len(args.compute):
        yield "--compute: shares that are the same in percent would be saved under one name"
    if args.begin and args.method != "router":
        yield "--begin is for --method router"
    if args.method == "evolution" and not (args.generations or args.candidates or args.minutes):
        yield "--method evolution needs --generations, --candidates or --minutes"
    if args.quality == "clip" and (args.clip is None or args.model == "dit"):
        yield "--quality clip needs --clip, and a model that is given words"
    if args.kid and args.model not in splits.FITTING:
        yield f"--kid is for {', '.join(splits.FITTING)}"


def split_of(args: argparse.Namespace) -> tuple[Any, Split]:
    """The pipeline, and the calls that it is searched, confirmed and compared on."""
    if args.model in splits.FITTING:
        return of_testbed(args.model, args.steps, args.samples, args.confirm, args.held_out, args.batch)
    prompts = list(dict.fromkeys(read_prompts(args.prompts))) if args.prompts else []
    if len(prompts) // 2 <= args.confirm:
        raise needs_prompts(args.model, 2 * (args.confirm + 1))
    return of_prompts(args.model, prompts, args.steps, args.confirm, args.batch)


def search_of(args: argparse.Namespace, split: Split) -> Search:
    then: Evolution | RouterTraining | None = None
    if args.method == "evolution":
        budget = Budget(args.generations, args.candidates, args.minutes)
        then = Evolution(budget, args.population, wall_time if args.cost == "latency" else None)
    elif args.method == "router":
        then = RouterTraining(args.runs, args.lr, args.begin)
    predictor = PREDICTORS[args.predictor]
    return Search(
        shares=args.compute,
        predictor={**predictor, "hindsight": True} if args.hindsight else predictor,
        sites=args.sites,
        loss=_loss(args, split),
        folder=args.out,
        seed=args.seed,
        polish=args.polish,
        then=then,
    )


def _loss(args: argparse.Namespace, split: Split) -> Loss:
    if args.quality == "clip":
        return minus_clip([prompt for call in split.searched for prompt in call["prompt"]], *args.clip)
    return kid_to_full() if args.quality == "kid" else minus_psnr


def main() -> None:
    args = arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    pipe, split = split_of(args)
    found = (
        saved_schedules(args.out) if args.method == "saved" else searched(pipe, split, search_of(args, split))
    )
    if not is_first():
        return
    distance = kid_to_real(args.model) if args.kid else None
    comparison = Comparison(pipe, split.held_out, referenced=False, distance=distance)
    rows = [comparison.full_row()] if args.kid else []
    calibration = split.searched if args.baselines else ()
    rows += compared(comparison, found, args.compute, hindsight=args.hindsight, calibration=calibration)
    print(table(rows))
    if args.json:
        write_result(args.json, header(str(pipe.device)), {"rows": as_json(rows)})


if __name__ == "__main__":
    run(main)
