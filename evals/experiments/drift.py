"""How well the report's estimate of the error predicts the error: rank correlation over seeds and budgets."""

from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.recipes.trajectory import TrajectoryConfig

STEPS = 50
SPEEDUPS = (1.3, 1.6, 2.0, 2.5, 3.0, 4.0)


def spearman(x: Tensor, y: Tensor) -> float:
    """Rank correlation of two vectors."""
    ranks = [values.argsort().argsort().double() for values in (x, y)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def measured(testbed: str, samples: int) -> dict[str, Any]:
    """Correlation of the estimate with the PSNR that was lost: over all runs, and its means within a seed and a budget."""
    pipe, seeds = zoo.load(testbed), range(samples)
    estimates = torch.zeros(len(seeds), len(SPEEDUPS))
    losses = torch.zeros_like(estimates)
    for seed in tqdm(seeds, desc=testbed):
        call = zoo.sample_call(testbed, seed, STEPS, 1)
        full = render(pipe, call).pictures
        for b, speedup in enumerate(SPEEDUPS):
            rendered = render(pipe, call, TrajectoryConfig(speedup=speedup))
            estimates[seed, b] = rendered.run_report.drift or 0.0
            losses[seed, b] = -psnr(rendered.pictures, full).item()
    over_budgets = [spearman(estimates[seed], losses[seed]) for seed in seeds]
    over_seeds = [spearman(estimates[:, b], losses[:, b]) for b in range(len(SPEEDUPS))]
    found = {
        "all": round(spearman(estimates.flatten(), losses.flatten()), 3),
        "over budgets, mean over seeds": round(sum(over_budgets) / len(over_budgets), 3),
        "over seeds, mean over budgets": round(sum(over_seeds) / len(over_seeds), 3),
    }
    print(testbed, found)
    return {"steps": STEPS, "spearman": found}
