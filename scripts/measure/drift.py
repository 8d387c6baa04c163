"""How the report's estimate of what was lost relates to what was lost: rank correlation over seeds and budgets.

`python scripts/measure/drift.py --testbeds flux dit --json evals/results/drift.json`
"""

import argparse
import json
import platform
from datetime import date
from pathlib import Path

import diffusers
import torch
from torch import Tensor
from tqdm import tqdm

from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.recipes.budget import BudgetConfig

SPEEDUPS = (1.3, 1.6, 2.0, 2.5, 3.0, 4.0)


def ranks(values: Tensor) -> Tensor:
    return values.argsort().argsort().double()


def spearman(x: Tensor, y: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([ranks(x), ranks(y)]))[0, 1])


def relate(name: str, seeds: int, steps: int) -> dict[str, float]:
    """Correlation of the estimate with PSNR over all runs, and its mean over the budgets taken one by one."""
    pipe = zoo.load(name)
    estimates, losses = torch.zeros(seeds, len(SPEEDUPS)), torch.zeros(seeds, len(SPEEDUPS))
    for seed in tqdm(range(seeds), desc=name):
        call = zoo.sample_call(name, seed, steps, 1)
        full = render(pipe, call).pictures
        for b, speedup in enumerate(SPEEDUPS):
            rendered = render(pipe, call, BudgetConfig(speedup=speedup))
            assert rendered.report is not None
            estimates[seed, b] = rendered.report.drift or 0.0
            losses[seed, b] = -psnr(rendered.pictures, full).item()
    within = [spearman(estimates[:, b], losses[:, b]) for b in range(len(SPEEDUPS))]
    return {
        "all": round(spearman(estimates.flatten(), losses.flatten()), 3),
        "over budgets, mean over seeds": round(
            sum(spearman(estimates[s], losses[s]) for s in range(seeds)) / seeds, 3
        ),
        "over seeds, mean over budgets": round(sum(within) / len(within), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--testbeds", nargs="+", default=zoo.NAMES, choices=zoo.NAMES)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = {name: relate(name, args.seeds, args.steps) for name in args.testbeds}
    print(json.dumps(found, indent=1))
    if args.json:
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "diffusers": diffusers.__version__,
        }
        command = f"python scripts/measure/drift.py --seeds {args.seeds} --steps {args.steps}"
        head = {"command": command, "date": date.today().isoformat(), "device": "cpu", "versions": versions}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({**head, "spearman": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
