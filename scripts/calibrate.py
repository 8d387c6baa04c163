"""Calibrates a pipeline on some prompts and says what that gives on others.

`python scripts/calibrate.py flux --method ertacache --compute 0.5 --out outputs/flux` (a testbed, a folder, or a hub id).
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline

from diffcache.config import CacheConfig
from diffcache.evals.harness import quantization
from diffcache.evals.harness.comparison import Comparison, Row, table
from diffcache.evals.harness.provenance import provenance
from diffcache.evals.testbeds import zoo
from diffcache.profiling.calibrating.corrections import Corrections
from diffcache.profiling.calibrating.ertacache import calibrate_ertacache
from diffcache.profiling.calibrating.magcache import calibrate_magcache
from diffcache.profiling.calibrating.profilingdit import calibrate_profilingdit
from diffcache.profiling.calibrating.teacache import calibrate_teacache
from diffcache.profiling.calibrating.threshold import calibrate_threshold
from diffcache.profiling.recording.drawing import draw
from diffcache.profiling.recording.record import record
from diffcache.profiling.searching.space import EXTRAPOLATE, HOLD
from diffcache.profiling.searching.tuning import tune
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.uniform import UniformConfig

Call = dict[str, Any]


def calls_of(args: argparse.Namespace) -> tuple[Any, list[Call], Call]:
    """The pipeline, the calibration calls, and a call of held-out prompts."""
    if args.model in zoo.NAMES:
        half = args.samples // 2
        calls = [zoo.sample_call(args.model, seed, args.steps, half, "calibration") for seed in (1000, 2000)]
        return zoo.load(args.model), calls, zoo.sample_call(args.model, 0, args.steps, args.samples)
    pipe = DiffusionPipeline.from_pretrained(args.model).to("cuda" if torch.cuda.is_available() else "cpu")
    prompts = args.prompts.read_text().splitlines() if args.prompts else []
    least = 4 if args.method == "tune" else 2  # tune keeps half of its half apart
    if len(prompts) < least:
        raise SystemExit(f"--prompts must name a file of at least {least} prompts, one on each line")
    half = len(prompts) // 2
    calls = [
        {"prompt": p, "num_inference_steps": args.steps, "generator": torch.Generator().manual_seed(i)}
        for i, p in enumerate(prompts[:half])
    ]
    generators = [torch.Generator().manual_seed(1000 + i) for i in range(len(prompts) - half)]
    return pipe, calls, {"prompt": prompts[half:], "num_inference_steps": args.steps, "generator": generators}


def candidates(args: argparse.Namespace, pipe: Any, calls: list[Call]) -> dict[str, CacheConfig]:
    """What the calibration makes, saved under `args.out`; with ERTACache each of its corrections by itself."""
    if args.method == "ertacache":
        corrections = Corrections(closed=args.closed, **dict.fromkeys(args.without, False))
        schedule = calibrate_ertacache(pipe, calls, args.compute, corrections)
        schedule.save_pretrained(args.out)
        without = ReplayConfig(schedule=schedule, hindsight=False)
        return {
            "schedule alone": without.replace(rectify=False, respace=False),
            "+ rectification, if kept": without.replace(respace=False),
            "+ step adjustment, if kept": without,
            "+ hindsight, if kept": ReplayConfig(schedule=schedule),
        }
    if args.method == "profilingdit":
        schedule = calibrate_profilingdit(pipe, calls, background=args.background)
        schedule.save_pretrained(args.out)
        for block, score in schedule.measured["foreground"].items():
            print(f"{block}: {score:.3f} of the foreground")
        return {"profilingdit": ReplayConfig(schedule=schedule)}
    if args.method == "tune":
        schedule = tune(pipe, calls, quality=args.quality, speedup=None if args.quality else 1 / args.compute)
        schedule.save_pretrained(args.out)
        return {"tuned": ReplayConfig(schedule=schedule)}
    made: CacheConfig
    if args.method == "easycache":
        made = calibrate_threshold(pipe, calls, EasyCacheConfig(), args.compute)
    else:
        base = {"magcache": calibrate_magcache, "teacache": calibrate_teacache}[args.method](pipe, calls)
        made = calibrate_threshold(pipe, calls, base, args.compute)
    made.save_pretrained(args.out)
    return {args.method: made}


def quantised(args: argparse.Namespace, pipe: Any, calls: list[Call], held_out: Call) -> None:
    """Calibrates weights, schedule and corrections together, and prints what each part costs and brings."""
    predictor = HOLD if args.predictor == "hold" else EXTRAPOLATE
    schedule, rows = quantization.compared(
        pipe,
        batches(args, "calibration", args.samples, args.samples // 4) if args.model in zoo.NAMES else calls,
        batches(args, "heldout", args.held_out, args.samples) if args.held_out else [held_out],
        quantization.way(args.quantize),
        compute=args.compute,
        predictor=predictor,
        distance=quantization.kid_to_real() if args.kid else None,
    )
    schedule.save_pretrained(args.out)
    together = quantization.interaction(rows)
    print(quantization.table(rows))
    print(
        f"\ninteraction: {together}\ncalibration: {schedule.measured['psnr_calibration']}\nwritten to {args.out}"
    )
    if args.json:
        settings = {name: str(value) for name, value in vars(args).items() if name not in ("out", "json")}
        measured = {"interaction": together, "psnr_calibration": schedule.measured["psnr_calibration"]}
        data = {**provenance(str(pipe.device)), "settings": settings, **measured}
        args.json.write_text(json.dumps({**data, "rows": quantization.as_json(rows)}, indent=1) + "\n")


def batches(args: argparse.Namespace, split: zoo.Split, samples: int, size: int) -> list[Call]:
    """Calls of a testbed, each of other prompts: a calibration that judges by every second one judges by new prompts."""
    prompts, seed = zoo.prompts(args.model, samples, split), 1000 if split == "calibration" else 0
    return [
        zoo.call_for(args.model, prompts[i : i + size], range(seed + i, seed + i + size), args.steps)
        for i in range(0, samples, size)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a testbed, a folder, or a hub id")
    parser.add_argument(
        "--method",
        default="ertacache",
        choices=["ertacache", "profilingdit", "magcache", "teacache", "easycache", "tune", "record"],
    )
    parser.add_argument("--compute", type=float, default=0.5, help="share of the full run's work")
    parser.add_argument(
        "--background", type=float, default=0.6, help="share of blocks that ProfilingDiT caches"
    )
    parser.add_argument("--quality", type=float, help="PSNR in dB to keep, for --method tune")
    parser.add_argument("--sites", default="model", help="what to record (see UniformConfig.site)")
    parser.add_argument("--closed", action="store_true", help="fit along the trajectory that reuse leads to")
    parser.add_argument(
        "--without",
        nargs="+",
        default=[],
        choices=["rectify", "respace", "hindsight"],
        help="corrections that ERTACache does not try",
    )
    parser.add_argument(
        "--prompts", type=Path, help="one prompt on each line, for pipelines other than testbeds"
    )
    parser.add_argument("--samples", type=int, default=16, help="of a testbed, on each side")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument(
        "--quantize", help="as for accelerate, or int4: calibrates both together (CacheQuant)"
    )
    parser.add_argument("--predictor", default="hold", choices=["hold", "order-1"], help="with --quantize")
    parser.add_argument(
        "--held-out", type=int, help="samples of a testbed to judge --quantize by, if not --samples"
    )
    parser.add_argument(
        "--kid",
        action="store_true",
        help="with --quantize: to real pictures, on the testbeds' classifier's features",
    )
    parser.add_argument("--json", type=Path, help="where the table of --quantize is written down")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    pipe, calls, held_out = calls_of(args)
    if args.quantize:
        quantised(args, pipe, calls, held_out)
        return
    if args.method == "record":
        recording = record(pipe, calls, sites=args.sites, folder=args.out)
        print(
            f"{recording.table()}\n\nwritten to {args.out}, drawn in {draw(recording, args.out / 'recording.png')}"
        )
        return
    made = candidates(args, pipe, calls)
    comparison = Comparison(pipe, held_out)
    rows: list[Row] = [comparison.method(name, config) for name, config in made.items()]
    interval = max(round(1 / args.compute), 1)
    rows.append(comparison.method("uniform, hold", UniformConfig(interval=interval)))
    extrapolate = UniformConfig(interval=interval, order=1, basis="output", warmup_steps=3)
    rows.append(comparison.method("uniform, order 1", extrapolate))
    rows += comparison.fewer_steps(round(args.compute * args.steps))
    print(table(rows))
    print(f"\nwritten to {args.out}")


if __name__ == "__main__":
    main()
