"""Compares methods on testbeds at equal compute: PSNR to the full run and to 1000 steps, beside the plain pipeline
with fewer steps. `python scripts/measure/methods.py --testbeds dit flux --json evals/results/comparison.json`.
"""

import argparse
import json
import platform
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import diffusers
import torch
from tqdm import tqdm

from diffcache.config import CacheConfig
from diffcache.evals.harness.comparison import SHARES, TOLERANCE, Comparison, Row, as_json, nearest, table
from diffcache.evals.testbeds import zoo
from diffcache.recipes.registry import METHODS
from diffcache.schedulers.errors import TargetError

SWEEPS: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "hold": ("uniform", {"warmup_steps": 3, "knob": "interval"}, (2, 3, 4)),
    "curvature": ("curvature", {"knob": "threshold"}, (0.02, 0.05, 0.1)),
    "order 1, watched": (
        "uniform",
        {"order": 1, "basis": "output", "warmup_steps": 3, "watch_bound": 0.5, "knob": "interval"},
        (2,),
    ),
    "order 1": ("uniform", {"order": 1, "basis": "output", "warmup_steps": 3, "knob": "interval"}, (2, 3, 4)),
    "order 2": ("uniform", {"order": 2, "basis": "output", "warmup_steps": 3, "knob": "interval"}, (2, 3, 4)),
    "easycache": ("easycache", {"knob": "threshold"}, (0.03, 0.06, 0.1, 0.2)),
    "fbcache": ("fbcache", {"knob": "threshold"}, (0.03, 0.06, 0.12, 0.24)),
    "teacache": ("teacache", {"knob": "threshold"}, (0.05, 0.1, 0.2, 0.4)),
    "magcache": ("magcache", {"knob": "threshold"}, (0.03, 0.06, 0.12, 0.24)),
    "taylorseer": ("taylorseer", {"order": 1, "warmup_steps": 3, "knob": "interval"}, (2, 3, 4, 6)),
    "fora": ("fora", {"knob": "interval"}, (2, 3, 4, 6)),
    "profilingdit": ("profilingdit", {"knob": "interval"}, (2, 3, 4, 6)),
    "deepcache": ("deepcache", {"knob": "interval"}, (2, 3, 4, 6)),
    "pab": ("pab", {"knob": "interval"}, (2, 4, 8)),
    "fastercache": ("fastercache", {"knob": "guidance_interval"}, (2, 5, 10)),
    "tgate": ("tgate", {"knob": "gate"}, (0.2, 0.4, 0.6)),
}
"""Row name -> method, its fixed options with the name of its knob, and the knob's settings."""


def contenders() -> Iterator[tuple[str, CacheConfig]]:
    """Every method at every setting of its knob."""
    for name, (method, options, settings) in SWEEPS.items():
        fixed = {key: value for key, value in options.items() if key != "knob"}
        for setting in settings:
            yield f"{name} {setting}", METHODS[method](**fixed, **{options["knob"]: setting})


def renewed(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """A stored result with the rows of `args.only`, measured now; what and when is noted beside them."""
    stored: dict[str, Any] = json.loads(path.read_text())
    for name, rows in stored["testbeds"].items():
        pipe = zoo.load(name).to(args.device)
        comparison = Comparison(pipe, zoo.sample_call(name, 0, args.steps, args.samples))
        for method, config in contenders():
            if method in args.only:
                (new,) = as_json([comparison.method(method, config)])
                rows[:] = [row for row in rows if row["name"] != method]
                rows.insert(1, new)
    only = " ".join(args.only)
    stored["renewed"] = {
        **stored.get("renewed", {}),
        only: f"--samples {args.samples} --steps {args.steps}, {date.today().isoformat()}",
    }
    return stored


def compare(name: str, samples: int, steps: int, device: str) -> list[Row]:
    pipe = zoo.load(name).to(device)
    comparison = Comparison(pipe, zoo.sample_call(name, 0, steps, samples))
    rows = [comparison.full_row()]
    for method, config in tqdm(list(contenders()), desc=name):
        try:
            rows.append(comparison.method(method, config))
        except TargetError as error:  # this denoiser has no such place
            tqdm.write(f"{method}: {error}")
    for share in SHARES:
        rows += comparison.fewer_steps(round(share * steps))
    return rows


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--testbeds", nargs="+", default=zoo.NAMES, choices=zoo.NAMES)
    parser.add_argument("--samples", type=int, default=16, help="seeds per testbed")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--only", nargs="+", help="measure these rows, and put them into what --json holds already"
    )
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.only:
        args.json.write_text(json.dumps(renewed(args.json, args), indent=1) + "\n")
        return
    results = {}
    for name in args.testbeds:
        rows = compare(name, args.samples, args.steps, args.device)
        results[name] = as_json(rows)
        print(f"\n### {name}: everything\n\n{table(rows)}\n")
        for share in SHARES:
            print(f"### {name}: at {share:.0%} of the compute, give or take {TOLERANCE:.0%}\n")
            best_first = sorted(nearest(rows, share).values(), key=lambda row: -row.psnr_full)
            print(table(best_first) + "\n")
    if args.json:
        command = f"python scripts/measure/methods.py --samples {args.samples} --steps {args.steps}"
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "diffusers": diffusers.__version__,
        }
        head = {
            "command": command,
            "date": date.today().isoformat(),
            "device": device_name(args.device),
            "versions": versions,
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({**head, "testbeds": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
