"""Searches schedules on some prompts and says what they give on others, beside uniform ones and fewer steps.

`python scripts/search_schedule.py dit --method evolution --compute 0.5 0.34 --out outputs/dit` (a testbed, a folder, or a hub id).
"""

import argparse
import json
import platform
from datetime import date
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers import DiffusionPipeline

from diffcache.evals import zoo
from diffcache.evals.baselines import baselines
from diffcache.evals.comparison import Comparison, Row, as_json, table
from diffcache.profiling.dynamic import PLANS, dynamic_programming
from diffcache.profiling.evolving import Budget, evolve
from diffcache.profiling.fronts import within, write_front
from diffcache.profiling.probing import probed
from diffcache.profiling.record import Call, record
from diffcache.profiling.space import EXTRAPOLATE, HOLD, Space
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.schedule import Schedule

PREDICTORS = {"hold": HOLD, "order-1": EXTRAPOLATE}


def calls_of(args: argparse.Namespace) -> tuple[Any, list[Call], Call]:
    """The pipeline, the calls that are searched on, and a call of prompts and seeds kept apart."""
    if args.model in zoo.NAMES:
        calls = [zoo.sample_call(args.model, 1000, args.steps, args.samples, "calibration")]
        return zoo.load(args.model), calls, zoo.sample_call(args.model, 0, args.steps, args.held_out)
    pipe = DiffusionPipeline.from_pretrained(args.model).to("cuda" if torch.cuda.is_available() else "cpu")
    prompts = args.prompts.read_text().splitlines() if args.prompts else []
    if len(prompts) < 2:
        raise SystemExit("--prompts must name a file of at least two prompts, one on each line")
    half = len(prompts) // 2
    searched, kept = (
        _call(part, args.steps, seed) for part, seed in ((prompts[:half], 1000), (prompts[half:], 0))
    )
    return pipe, [searched], kept


def _call(prompts: list[str], steps: int, seed: int) -> Call:
    generators = [torch.Generator().manual_seed(seed + i) for i in range(len(prompts))]
    return {"prompt": prompts, "num_inference_steps": steps, "generator": generators, "output_type": "pt"}


def searched(args: argparse.Namespace, pipe: Any, calls: list[Call]) -> dict[str, Schedule]:
    """Schedules by name, for each share of the compute, saved under `args.out`."""
    predictor = PREDICTORS[args.predictor]
    space = Space(record(pipe, calls, sites=args.sites, basis=predictor["basis"]), predictor)
    space = probed(pipe, calls, space)
    plans = ["shared"] if args.sites == "model" else list(PLANS)
    found = {
        f"dp, {plan}, {share:.0%}": dynamic_programming(space, share, plan)
        for share in args.compute
        for plan in plans
    }
    if args.method == "evolution":
        budget = Budget(args.generations, args.candidates, args.minutes)
        search = evolve(pipe, calls, space, args.out, budget, population=args.population, seed=args.seed)
        write_front(search, space, args.out)
        for share in args.compute:
            found[f"evolved, {share:.0%}"] = space.schedule(
                within(search.front, share), {"method": "evolution"}
            )
    for name, schedule in found.items():
        schedule.save_pretrained(args.out / name.replace(", ", "-").replace("%", ""))
    return found


def compared(
    args: argparse.Namespace, pipe: Any, calls: list[Call], held_out: Call, found: dict[str, Schedule]
) -> list[Row]:
    comparison = Comparison(pipe, held_out, referenced=False)
    rows = [comparison.method(name, ReplayConfig(schedule=schedule)) for name, schedule in found.items()]
    for share in args.compute if args.baselines else []:
        rows += baselines(comparison, calls, share)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a testbed, a folder, or a hub id")
    parser.add_argument("--method", default="dp", choices=["dp", "evolution"], help="evolution includes dp")
    parser.add_argument("--predictor", default="hold", choices=list(PREDICTORS))
    parser.add_argument("--sites", default="model", help="model, sub-layer, or any other kind of place")
    parser.add_argument(
        "--compute", type=float, nargs="+", default=[0.5, 0.34], help="shares of the full run's work"
    )
    parser.add_argument("--generations", type=int)
    parser.add_argument("--candidates", type=int, help="rendered in all")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--population", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompts", type=Path, help="one on each line; the first half is searched on")
    parser.add_argument("--samples", type=int, default=4, help="of a testbed to search on")
    parser.add_argument("--held-out", type=int, default=8, help="samples of a testbed to compare on")
    parser.add_argument(
        "--baselines", action="store_true", help="compare with unsearched methods and fewer steps"
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path, help="where the table is written down")
    args = parser.parse_args()
    torch.manual_seed(0)
    pipe, calls, held_out = calls_of(args)
    found = searched(args, pipe, calls)
    rows = compared(args, pipe, calls, held_out, found)
    print(table(rows))
    if args.json:
        settings = {name: str(value) for name, value in vars(args).items() if name not in ("out", "json")}
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "diffusers": diffusers.__version__,
        }
        head = {"command": "python scripts/search_schedule.py", "arguments": settings}
        head |= {"date": date.today().isoformat(), "device": str(pipe.device), "versions": versions}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({**head, "rows": as_json(rows)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
