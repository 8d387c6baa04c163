"""Compares methods on testbeds at equal compute: PSNR to the full run and to 1000 steps, beside the plain pipeline
with fewer steps. `python scripts/compare_methods.py --testbeds dit flux --json evals/results/comparison.json`.
"""

import argparse
import json
import platform
from datetime import date
from pathlib import Path

import diffusers
import torch
from tqdm import tqdm

from diffcache.api import DEFAULT
from diffcache.config import CacheConfig
from diffcache.evals import zoo
from diffcache.evals.comparison import Comparison, Row, as_json, table
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.uniform import UniformConfig


def contenders() -> dict[str, CacheConfig]:
    """What is compared, at about half and about a third of the compute."""
    methods: dict[str, CacheConfig] = {"default": DEFAULT}
    for threshold in (0.05, 0.1):
        methods[f"easycache {threshold}"] = EasyCacheConfig(threshold=threshold)
    for interval in (2, 3):
        methods[f"hold every {interval}"] = UniformConfig(interval=interval, warmup_steps=3)
        for order in (1, 2):
            config = UniformConfig(interval=interval, order=order, basis="output", warmup_steps=3)
            methods[f"order {order} every {interval}"] = config
    return methods


def compare(name: str, samples: int, steps: int, device: str) -> list[Row]:
    pipe = zoo.load(name).to(device)
    comparison = Comparison(pipe, zoo.sample_call(name, 0, steps, samples))
    rows = [comparison.full_row()]
    for method, config in tqdm(contenders().items(), desc=name):
        rows.append(comparison.method(method, config))
    for ticks in sorted({row.ticks for row in rows if not row.name.startswith(("full", "easycache"))}):
        rows += comparison.fewer_steps(ticks)
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
    args = parser.parse_args()
    torch.manual_seed(0)
    results = {}
    for name in args.testbeds:
        rows = compare(name, args.samples, args.steps, args.device)
        results[name] = as_json(rows)
        print(f"\n### {name}\n\n{table(rows)}\n")
    if args.json:
        command = f"python scripts/compare_methods.py --samples {args.samples} --steps {args.steps}"
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
