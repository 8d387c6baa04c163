"""Calibrates a pipeline on some prompts, and shows on others what that gives.

`python scripts/calibrate.py flux --method ertacache --compute 0.5 --out outputs/flux` (the testbeds dit, flux, wan and sd
have prompts of their own for this; another testbed, a folder or a hub id needs --prompts).
"""

import argparse
from pathlib import Path
from typing import Any

from diffcache.evals.experiments import quantization
from diffcache.evals.experiments.calibration import METHODS, Calibration, compared, configs_of
from diffcache.evals.harness.calls import calibration_calls, calls_of_testbed, of_prompts
from diffcache.evals.harness.command_line import MODEL, needs_prompts, parser, run, whole
from diffcache.evals.harness.comparison import Comparison, table
from diffcache.evals.harness.prompts import read_prompts
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.quality import kid_to_real
from diffcache.evals.harness.results import write_result
from diffcache.evals.testbeds import splits, zoo
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.drawing import draw
from diffcache.profiling.recording.pipeline_facts import models_of
from diffcache.profiling.recording.record import record
from diffcache.profiling.searching.space import EXTRAPOLATE, HOLD
from diffcache.profiling.tuning.artifact import save_measured


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("model", help=MODEL)
    options.add_argument("--method", default="ertacache", choices=[*METHODS, "record"])
    options.add_argument("--compute", type=float, default=0.5, help="share of the full run's work")
    options.add_argument(
        "--background", type=float, default=0.6, help="share of blocks that ProfilingDiT caches"
    )
    options.add_argument("--quality", type=float, help="PSNR in dB to keep, for --method tune")
    options.add_argument("--sites", default="model", help="what to record (see UniformConfig.site)")
    options.add_argument("--closed", action="store_true", help="fit along the trajectory that reuse leads to")
    options.add_argument(
        "--without",
        nargs="+",
        default=[],
        choices=["rectify", "respace", "hindsight"],
        help="corrections that ERTACache does not try",
    )
    options.add_argument(
        "--prompts", type=Path, help="a file of them, for models that have none of their own"
    )
    options.add_argument("--samples", type=whole, default=16, help="of a testbed, on each side")
    options.add_argument("--steps", type=whole, default=50)
    options.add_argument(
        "--quantize", help="as for accelerate, or int4: calibrate weights and cache together (CacheQuant)"
    )
    options.add_argument("--predictor", default="hold", choices=["hold", "order-1"], help="with --quantize")
    options.add_argument(
        "--held-out", type=whole, help="with --quantize: samples of a testbed to compare on, if not --samples"
    )
    options.add_argument(
        "--kid", action="store_true", help="with --quantize: measure a testbed's KID to real pictures"
    )
    options.add_argument("--json", type=Path, help="with --quantize: file for the rows")
    options.add_argument("--out", type=Path, required=True, help="folder for what the calibration makes")
    args = options.parse_args()
    if args.kid and args.model not in splits.FITTING:
        options.error(f"--kid is for {', '.join(splits.FITTING)}")
    if args.samples < 2:
        options.error("--samples: calibrations take two calls, so give at least 2")
    return args


def calls_of(args: argparse.Namespace) -> tuple[Any, list[Call], list[Call]]:
    """The pipeline, the calibration calls, and the held-out ones."""
    if args.model not in splits.FITTING:
        prompts = read_prompts(args.prompts) if args.prompts else []
        least = 4 if args.method == "tune" else 2  # tune splits its half again
        if len(prompts) < least:
            raise needs_prompts(args.model, least)
        pipe, split = of_prompts(args.model, prompts, args.steps, batch=1)
        return pipe, split.searched, [split.held_out]
    if (
        args.quantize
    ):  # each call has other prompts: this calibration fits to some calls and judges by the others
        calls = calls_of_testbed(
            args.model, "calibration", range(args.samples), args.steps, batch=args.samples // 4
        )
    else:
        calls = calibration_calls(args.model, args.samples, args.steps)
    held_out = range(args.held_out or args.samples)
    return (
        zoo.load(args.model),
        calls,
        calls_of_testbed(args.model, "heldout", held_out, args.steps, args.samples),
    )


def quantised(args: argparse.Namespace, pipe: Any, calls: list[Call], held_out: list[Call]) -> None:
    """Calibrates weights, schedule and corrections together, and prints what each costs and gives."""
    setting = quantization.Setting(
        quantization.weight_format(args.quantize),
        args.compute,
        HOLD if args.predictor == "hold" else EXTRAPOLATE,
        kid_to_real(args.model) if args.kid else None,
    )
    schedule, rows = quantization.compared(pipe, calls, held_out, setting)
    schedule.save_pretrained(args.out)
    measured = {
        "interaction": quantization.interaction(rows),
        "psnr_calibration": schedule.measured["psnr_calibration"],
    }
    print(quantization.table(rows))
    print("\n" + "\n".join(f"{name}: {value}" for name, value in measured.items()))
    if args.json:
        settings = {name: str(value) for name, value in vars(args).items() if name not in ("out", "json")}
        figures = {"settings": settings, **measured, "rows": quantization.as_json(rows)}
        write_result(args.json, header(str(pipe.device)), figures)


def main() -> None:
    args = arguments()
    pipe, calls, held_out = calls_of(args)
    if args.quantize:
        quantised(args, pipe, calls, held_out)
    elif args.method == "record":
        recording = record(pipe, calls, sites=args.sites, folder=args.out)
        print(f"{recording.table()}\n\ndrawn in {draw(recording, args.out / 'recording.png')}")
    else:
        names = ("compute", "quality", "background", "closed", "without")
        made = METHODS[args.method](pipe, calls, Calibration(**{name: getattr(args, name) for name in names}))
        save_measured(made, models_of(pipe), args.out)
        if args.method == "profilingdit":
            for block, score in made.measured["foreground"].items():
                print(f"{block}: {score:.3f} of the foreground")
        comparison = Comparison(pipe, held_out[0])
        print(table(compared(comparison, configs_of(args.method, made), args.compute)))
    print(f"\nwritten to {args.out}")


if __name__ == "__main__":
    run(main)
