"""Searches schedules on some prompts and says what they give on others, beside what they have to beat.

`python scripts/search_schedule.py dit --method evolution --compute 0.5 0.34 --out outputs/dit` (a testbed, a folder, or a hub
id). With `accelerate launch` before it several processes share evolution and router training.
"""

import argparse
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffcache.evals.harness.baselines import baselines, uniform
from diffcache.evals.harness.comparison import Comparison, Row, as_json, table
from diffcache.evals.harness.objectives import kid_to_full, minus_clip
from diffcache.evals.harness.prompts import read_prompts
from diffcache.evals.harness.provenance import provenance
from diffcache.evals.harness.quantization import kid_to_real
from diffcache.evals.harness.splits import Split, of_prompts, of_testbed
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.record import record
from diffcache.profiling.searching.confirming import FEWEST, confirmed
from diffcache.profiling.searching.dynamic_programming import VARIANTS, dynamic_programming
from diffcache.profiling.searching.evolving import Budget, EvolutionSettings, evolve
from diffcache.profiling.searching.fronts import best_within, saved_schedules, write_front
from diffcache.profiling.searching.polishing import even, polished
from diffcache.profiling.searching.probing import probed
from diffcache.profiling.searching.processes import broadcast, is_first
from diffcache.profiling.searching.routing import routed, train_router
from diffcache.profiling.searching.scoring import Loss, Scorer, minus_psnr, wall_time
from diffcache.profiling.searching.space import EXTRAPOLATE, HOLD, Space
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.search.harmonica import Training

PREDICTORS: dict[str, Mapping[str, Any]] = {"hold": HOLD, "order-1": EXTRAPOLATE}
FINALISTS = 4
"""Of each share, the best that evolution found, to be confirmed."""


def split_of(args: argparse.Namespace) -> tuple[Any, Split]:
    """The pipeline, and the calls that it is searched, confirmed and compared on."""
    if args.model in zoo.NAMES:
        return of_testbed(args.model, args.steps, args.samples, args.confirm, args.held_out, args.batch)
    prompts = list(dict.fromkeys(read_prompts(args.prompts))) if args.prompts else []
    if len(prompts) // 2 <= args.confirm:
        least = 2 * (args.confirm + 1)
        raise SystemExit(f"--prompts must name a file of at least {least} different prompts")
    return of_prompts(args.model, prompts, args.steps, args.confirm, args.batch)


def searched(args: argparse.Namespace, pipe: Any, split: Split) -> dict[str, Schedule]:
    """Schedules by name, for each share of the compute, saved under `args.out`."""
    calls, predictor = split.searched, PREDICTORS[args.predictor]
    if args.hindsight:
        predictor = {**predictor, "hindsight": True}
    space = Space(record(pipe, calls, sites=args.sites, basis=predictor["basis"]), predictor)
    found: dict[str, Schedule] = {}
    if args.begin is None:
        plans = list(VARIANTS) if args.sites != "model" and args.method != "router" else ["shared"]
        space = broadcast(probed(pipe, calls, space, each_site=len(plans) > 1 or args.method == "evolution"))
        for share in args.compute:
            found |= {f"dp, {plan}, {share:.0%}": dynamic_programming(space, share, plan) for plan in plans}
    if args.polish:
        found |= _polished(args, pipe, calls, space)
    _save(found, args.out)  # before what takes longest
    learned = METHODS[args.method](args, pipe, split, space, found)
    _save(learned, args.out)
    return found | learned


def _save(found: dict[str, Schedule], out: Path) -> None:
    for name, schedule in found.items():
        if is_first():
            schedule.save_pretrained(out / name.replace(", ", "-").replace("%", ""))


def _polished(args: argparse.Namespace, pipe: Any, calls: list[Call], space: Space) -> dict[str, Schedule]:
    """As many ticks evenly spread as dynamic programming has for each share, and what a local search makes of both."""
    scorer = Scorer(pipe, calls, space, _loss(args, calls))
    found = {}
    for share in args.compute:
        begin = dynamic_programming(space, share).decisions[:, 0]
        table = broadcast(polished(scorer, begin, args.polish))
        found[f"even, {share:.0%}"] = space.schedule(even(space, int(begin[:, 0].sum())), {})
        found[f"dp, polished, {share:.0%}"] = space.schedule(table, {"method": "local search"})
    return found


def _evolved(
    args: argparse.Namespace, pipe: Any, split: Split, space: Space, begin: dict[str, Schedule]
) -> dict[str, Schedule]:
    """The best for each share of an evolution that begins with what was found before."""
    budget = Budget(args.generations, args.candidates, args.minutes)
    cost = wall_time if args.cost == "latency" else None
    scorer = Scorer(pipe, split.searched, space, _loss(args, split.searched), cost)
    settings = EvolutionSettings(population=args.population, seed=args.seed)
    tables = torch.stack([schedule.decisions[:, 0] for schedule in begin.values()])
    search = evolve(scorer, args.out, budget, settings, begin=tables)
    if is_first():
        write_front(search, space, args.out)
    runs = FullRuns(pipe, split.confirming) if split.confirming else None
    found = {}
    for share in args.compute:
        tables = best_within(search, share, FINALISTS)
        best, *_ = finalists = [space.schedule(table, {"method": "evolution"}) for table in tables]
        if runs is not None:
            best = broadcast(confirmed(runs, begin[f"dp, shared, {share:.0%}"], finalists))
        found[f"evolved, {share:.0%}"] = best
    return found


def _loss(args: argparse.Namespace, calls: list[Call]) -> Loss:
    if args.quality == "clip":
        return minus_clip([prompt for call in calls for prompt in call["prompt"]], *args.clip)
    return kid_to_full() if args.quality == "kid" else minus_psnr


def _learned(
    args: argparse.Namespace, pipe: Any, split: Split, space: Space, _: dict[str, Schedule]
) -> dict[str, Schedule]:
    """A router for each share, begun at dynamic programming's schedule."""
    found = {}
    for share in args.compute:
        training = Training(target=share, runs=args.runs, lr=args.lr, seed=args.seed)
        begin = _begun(args.begin, space) if args.begin else dynamic_programming(space, share).decisions[:, 0]
        folder = args.out / f"router-{share:.0%}".replace("%", "")
        router = train_router(pipe, split.searched, space, folder, training, begin=begin)
        found[f"router, {share:.0%}"] = routed(router, space, share)
    return found


def _begun(folder: Path, space: Space) -> Tensor:
    """A saved schedule of whatever places, as a table of all of this space's."""
    ticks = Schedule.from_pretrained(folder).decisions.any(-1).any(-1)
    return ticks.unsqueeze(1).repeat(1, len(space.sites))


METHODS = {"dp": lambda *_: {}, "evolution": _evolved, "router": _learned}


def compared(args: argparse.Namespace, pipe: Any, split: Split, found: dict[str, Schedule]) -> list[Row]:
    distance = kid_to_real() if args.kid else None
    comparison = Comparison(pipe, split.held_out, referenced=False, distance=distance)
    rows = [comparison.full_row()] if args.kid else []
    rows += [comparison.method(name, ReplayConfig(schedule=schedule)) for name, schedule in found.items()]
    for share in args.compute:
        rows += uniform(comparison, share)
        rows += uniform(comparison, share, hindsight=True) if args.hindsight else []
        if args.baselines:
            rows += baselines(comparison, split.searched, share, hindsight=args.hindsight)
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a testbed, a folder, or a hub id")
    parser.add_argument(
        "--method",
        default="dp",
        choices=[*METHODS, "saved"],
        help="all include dp, but for saved: what lies in --out",
    )
    parser.add_argument("--predictor", default="hold", choices=list(PREDICTORS))
    parser.add_argument(
        "--hindsight", action="store_true", help="amend what reused ticks lacked (whole denoisers)"
    )
    parser.add_argument("--sites", default="model", help="model, sub-layer, or any other kind of place")
    parser.add_argument(
        "--compute", type=float, nargs="+", default=[0.5, 0.34], help="shares of the full run's work"
    )
    parser.add_argument("--generations", type=int)
    parser.add_argument("--candidates", type=int, help="rendered in all")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--population", type=int, default=24)
    parser.add_argument("--polish", type=int, help="candidates of a local search after dp, for each share")
    parser.add_argument("--quality", default="psnr", choices=["psnr", "kid", "clip"], help="of an evolution")
    parser.add_argument("--clip", nargs="+", help="model and weights, as for scripts/evaluate.py")
    parser.add_argument("--cost", default="compute", choices=["compute", "latency"], help="of an evolution")
    parser.add_argument("--runs", type=int, default=200, help="of a router's training")
    parser.add_argument("--begin", type=Path, help="schedule that a router begins at; else what dp finds")
    parser.add_argument("--lr", type=float, default=0.05, help="of a router's training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompts", type=Path, help="a file of them; the first half is searched on")
    parser.add_argument("--samples", type=int, default=4, help="of a testbed to search on")
    parser.add_argument(
        "--batch", type=int, help="samples to a call; several processes share a router's calls"
    )
    parser.add_argument(
        "--confirm",
        type=int,
        default=0,
        help="further samples: what evolution found on the others replaces dp's only if it is better on these",
    )
    parser.add_argument("--held-out", type=int, default=8, help="samples of a testbed to compare on")
    parser.add_argument(
        "--baselines", action="store_true", help="compare with EasyCache, ERTACache and fewer steps too"
    )
    parser.add_argument("--kid", action="store_true", help="of a testbed's pictures kept apart, to real ones")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path, help="where the table is written down")
    args = parser.parse_args()
    for message in _conflicts(args):
        parser.error(message)
    return args


def _conflicts(args: argparse.Namespace) -> Iterator[str]:
    """What does not go together, said before anything is rendered."""
    if args.hindsight and args.sites != "model":
        yield "--hindsight is for whole denoisers: leave --sites out"
    if args.confirm and args.quality != "psnr":
        yield "--confirm compares by PSNR: leave it out with another --quality"
    if args.confirm and args.method != "evolution":
        yield "--confirm is for --method evolution"
    if args.confirm and args.confirm < FEWEST:
        yield f"--confirm needs at least {FEWEST} samples: fewer confirm nothing"
    if args.method == "router" and args.sites == "model":
        yield "--method router needs places inside the denoiser: --sites sub-layer"
    if len({f"{share:.0%}" for share in args.compute}) < len(args.compute):
        yield "--compute: shares that are the same in percent would be saved under one name"
    if args.begin and args.method != "router":
        yield "--begin is for --method router"
    if args.method == "evolution" and not (args.generations or args.candidates or args.minutes):
        yield "--method evolution needs --generations, --candidates or --minutes"
    if args.quality == "clip" and (args.clip is None or args.model == "dit"):
        yield "--quality clip needs --clip, and a model that is given words"


def main() -> None:
    args = arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    pipe, split = split_of(args)
    found = saved_schedules(args.out) if args.method == "saved" else searched(args, pipe, split)
    if not is_first():
        return
    rows = compared(args, pipe, split, found)
    print(table(rows))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        result = {**provenance(str(pipe.device)), "rows": as_json(rows)}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
