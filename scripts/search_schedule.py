"""Searches schedules on some prompts and says what they give on others, beside what they have to beat.

`python scripts/search_schedule.py dit --method evolution --compute 0.5 0.34 --out outputs/dit` (a testbed, a folder, or a hub
id). With `accelerate launch` before it several processes share evolution and router training.
"""

import argparse
import json
import logging
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from diffusers import DiffusionPipeline
from torch import Tensor

from diffcache.evals import zoo
from diffcache.evals.baselines import baselines
from diffcache.evals.comparison import Comparison, Row, as_json, table
from diffcache.evals.objectives import kid_to_full, minus_clip
from diffcache.evals.provenance import provenance
from diffcache.evals.quantization import kid_to_real
from diffcache.profiling.calling import Call
from diffcache.profiling.dynamic import PLANS, dynamic_programming
from diffcache.profiling.evolving import Budget, evolve
from diffcache.profiling.fronts import within, write_front
from diffcache.profiling.polishing import even, polished
from diffcache.profiling.probing import probed
from diffcache.profiling.processes import is_first, of_first
from diffcache.profiling.record import record
from diffcache.profiling.routing import routed, train_router
from diffcache.profiling.space import EXTRAPOLATE, HOLD, Space
from diffcache.profiling.trial import Loss, Trial, minus_psnr, wall_time
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.search.harmonica import Training

PREDICTORS = {"hold": HOLD, "order-1": EXTRAPOLATE}


def calls_of(args: argparse.Namespace) -> tuple[Any, list[Call], Call]:
    """The pipeline, the calls that are searched on, and a call of prompts and seeds kept apart."""
    if args.model in zoo.NAMES:
        calls = [
            zoo.call_for(args.model, asked, range(1000 + i, 1000 + i + len(asked)), args.steps)
            for i, asked in _batches(zoo.prompts(args.model, args.samples, "calibration"), args.batch)
        ]
        return zoo.load(args.model), calls, zoo.sample_call(args.model, 0, args.steps, args.held_out)
    pipe = DiffusionPipeline.from_pretrained(args.model).to(PartialState().device)
    prompts = args.prompts.read_text().splitlines() if args.prompts else []
    if len(prompts) < 2:
        raise SystemExit("--prompts must name a file of at least two prompts, one on each line")
    half = len(prompts) // 2
    calls = [_call(part, args.steps, 1000 + i) for i, part in _batches(prompts[:half], args.batch)]
    return pipe, calls, _call(prompts[half:], args.steps, 0)


def _batches(prompts: list[Any], size: int | None) -> list[tuple[int, list[Any]]]:
    """Place of the first prompt and the prompts of each call."""
    size = size or len(prompts)
    return [(i, prompts[i : i + size]) for i in range(0, len(prompts), size)]


def _call(prompts: list[str], steps: int, seed: int) -> Call:
    generators = [torch.Generator().manual_seed(seed + i) for i in range(len(prompts))]
    return {"prompt": prompts, "num_inference_steps": steps, "generator": generators, "output_type": "pt"}


def searched(args: argparse.Namespace, pipe: Any, calls: list[Call]) -> dict[str, Schedule]:
    """Schedules by name, for each share of the compute, saved under `args.out`."""
    predictor = PREDICTORS[args.predictor]
    space = Space(record(pipe, calls, sites=args.sites, basis=predictor["basis"]), predictor)
    found: dict[str, Schedule] = {}
    if args.begin is None:
        plans = list(PLANS) if args.sites != "model" and args.method != "router" else ["shared"]
        space = of_first(probed(pipe, calls, space, each_place=len(plans) > 1 or args.method == "evolution"))
        for share in args.compute:
            found |= {f"dp, {plan}, {share:.0%}": dynamic_programming(space, share, plan) for plan in plans}
    if args.polish:
        found |= _polished(args, pipe, calls, space)
    found |= METHODS[args.method](args, pipe, calls, space, found)
    for name, schedule in found.items():
        if is_first():
            schedule.save_pretrained(args.out / name.replace(", ", "-").replace("%", ""))
    return found


def _polished(args: argparse.Namespace, pipe: Any, calls: list[Call], space: Space) -> dict[str, Schedule]:
    """As many ticks evenly spread as dynamic programming has for each share, and what a local search makes of both."""
    trial = Trial(pipe, calls, space, _loss(args, calls))
    found = {}
    for share in args.compute:
        begin = dynamic_programming(space, share).decisions[:, 0]
        table = of_first(polished(trial, begin, args.polish))
        found[f"even, {share:.0%}"] = space.schedule(even(space, int(begin[:, 0].sum())), {})
        found[f"dp, polished, {share:.0%}"] = space.schedule(table, {"method": "local search"})
    return found


def _evolved(
    args: argparse.Namespace, pipe: Any, calls: list[Call], space: Space, begin: dict[str, Schedule]
) -> dict[str, Schedule]:
    """The best of a front for each share; it begins with what was found before."""
    budget = Budget(args.generations, args.candidates, args.minutes)
    search = evolve(
        pipe,
        calls,
        space,
        args.out,
        budget,
        population=args.population,
        seed=args.seed,
        loss=_loss(args, calls),
        cost=wall_time if args.cost == "latency" else None,
        begin=torch.stack([schedule.decisions[:, 0] for schedule in begin.values()]),
    )
    if is_first():
        write_front(search, space, args.out)
    return {
        f"evolved, {share:.0%}": space.schedule(within(search.front, share), {"method": "evolution"})
        for share in args.compute
    }


def _loss(args: argparse.Namespace, calls: list[Call]) -> Loss:
    if args.quality == "clip":
        return minus_clip([prompt for call in calls for prompt in call["prompt"]], *args.clip)
    return kid_to_full() if args.quality == "kid" else minus_psnr


def _learned(
    args: argparse.Namespace, pipe: Any, calls: list[Call], space: Space, _: dict[str, Schedule]
) -> dict[str, Schedule]:
    """A router for each share, begun at dynamic programming's schedule."""
    found = {}
    for share in args.compute:
        training = Training(target=share, runs=args.runs, lr=args.lr)
        begin = _begun(args.begin, space) if args.begin else dynamic_programming(space, share).decisions[:, 0]
        folder = args.out / f"router-{share:.0%}".replace("%", "")
        router = train_router(pipe, calls, space, folder, training, begin=begin, seed=args.seed)
        found[f"router, {share:.0%}"] = routed(router, space, share)
    return found


def _begun(folder: Path, space: Space) -> Tensor:
    """A saved schedule of whatever places, as a table of all of this space's."""
    ticks = Schedule.from_pretrained(folder).decisions.any(-1).any(-1)
    return ticks.unsqueeze(1).repeat(1, len(space.places))


METHODS = {"dp": lambda *_: {}, "evolution": _evolved, "router": _learned}


def saved(folder: Path) -> dict[str, Schedule]:
    """What an earlier search saved there."""
    return {
        path.parent.name: Schedule.from_pretrained(path.parent)
        for path in sorted(folder.glob("*/cache_schedule.json"))
    }


def compared(
    args: argparse.Namespace, pipe: Any, calls: list[Call], held_out: Call, found: dict[str, Schedule]
) -> list[Row]:
    distance = kid_to_real() if args.kid else None
    comparison = Comparison(pipe, held_out, referenced=False, distance=distance)
    rows = [comparison.full_row()] if args.kid else []
    rows += [comparison.method(name, ReplayConfig(schedule=schedule)) for name, schedule in found.items()]
    for share in args.compute if args.baselines else []:
        rows += baselines(comparison, calls, share)
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
    parser.add_argument("--prompts", type=Path, help="one on each line; the first half is searched on")
    parser.add_argument("--samples", type=int, default=4, help="of a testbed to search on")
    parser.add_argument(
        "--batch", type=int, help="samples to a call; several processes share a router's calls"
    )
    parser.add_argument("--held-out", type=int, default=8, help="samples of a testbed to compare on")
    parser.add_argument(
        "--baselines", action="store_true", help="compare with unsearched methods and fewer steps"
    )
    parser.add_argument("--kid", action="store_true", help="of a testbed's pictures kept apart, to real ones")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path, help="where the table is written down")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    pipe, calls, held_out = calls_of(args)
    found = saved(args.out) if args.method == "saved" else searched(args, pipe, calls)
    if not is_first():
        return
    rows = compared(args, pipe, calls, held_out, found)
    print(table(rows))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        result = {**provenance(str(pipe.device)), "rows": as_json(rows)}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
