"""Shows on one pipeline what a cache does and what it costs.

    python scripts/demo.py                                  # the Flux testbed that comes with the repository
    python scripts/demo.py --model wan                      # another testbed
    python scripts/demo.py --model black-forest-labs/FLUX.1-dev --prompt "a fox in the snow" --steps 28

Each row of the table is rendered in turns with the full run, so that both see the same machine.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from diffusers import DiffusionPipeline
from tqdm import tqdm

from diffcache.api import DEFAULT, methods
from diffcache.config import CacheConfig
from diffcache.evals.harness.pictures import draw_pairs
from diffcache.evals.harness.rendering import Rendered, noise_scheduler, render
from diffcache.evals.harness.rulers import rulers
from diffcache.evals.metrics.fidelity import psnr, ssim
from diffcache.evals.testbeds import zoo
from diffcache.recipes.budget import BudgetConfig
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.schedulers.errors import DiffcacheError


@dataclass
class Row:
    """One way to run the pipeline: fewer steps under some noise scheduler, or a method."""

    name: str
    steps: int
    config: CacheConfig | None = None
    replacement: Any = None

    def render(self, pipe: Any, call: dict[str, Any]) -> Rendered:
        with noise_scheduler(pipe, self.replacement):
            return render(pipe, {**call, "num_inference_steps": self.steps}, self.config)


def load(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The pipeline and the arguments of one call."""
    if args.model in zoo.NAMES:
        return zoo.load(args.model), zoo.sample_call(args.model, 0, args.steps, args.samples)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pipe = DiffusionPipeline.from_pretrained(
        args.model, torch_dtype=torch.bfloat16 if device == "cuda" else None
    )
    pipe.to(device)
    pipe.set_progress_bar_config(disable=True)
    call = {
        "prompt": [args.prompt] * args.samples,
        "num_inference_steps": args.steps,
        "generator": [torch.Generator("cpu").manual_seed(seed) for seed in range(args.samples)],
    }
    return pipe, call


def chosen(args: argparse.Namespace) -> CacheConfig:
    """The method to show."""
    if args.method is None:
        return DEFAULT if args.speedup is None else BudgetConfig(speedup=args.speedup)
    config = methods()[args.method]()
    return config if args.speedup is None else config.replace(interval=max(1, round(args.speedup)))


def measure(
    pipe: Any, call: dict[str, Any], full: Row, row: Row, rounds: int, bar: Any
) -> tuple[Rendered, float]:
    """One rendering of `row`, and its loop time over the full run's as the median of alternating pairs."""
    ratios, rendered = [], None
    for _ in range(rounds):
        before = full.render(pipe, call).seconds
        rendered = row.render(pipe, call)
        ratios.append(before / rendered.seconds)
        bar.update()
    assert rendered is not None
    return rendered, median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="flux", help="a testbed, a folder, or a hub id")
    parser.add_argument(
        "--prompt", default="a large red ring top left", help="for pipelines other than testbeds"
    )
    parser.add_argument("--method", choices=sorted(methods()), help="default: what accelerate(pipe) uses")
    parser.add_argument(
        "--speedup",
        type=float,
        help="at least this much less compute; with --method: its nearest whole interval",
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3, help="pairs of renderings per row")
    parser.add_argument("--out", type=Path, default=Path("outputs/demo"))
    args = parser.parse_args()
    try:
        config = chosen(args)
    except DiffcacheError as error:
        parser.error(str(error))
    pipe, call = load(args)
    full = Row("full run", args.steps)
    baseline = full.render(pipe, call).pictures  # also warms up
    shown = Row(config.name, args.steps, config)
    ticks = len(report_of(shown.render(pipe, call)).computed_ticks)
    rows = [shown, Row("easycache", args.steps, EasyCacheConfig())]
    rows += [Row(f"{ticks} steps, {name}", ticks, None, other) for name, other in rulers(pipe).items()]

    lines = ["| run | ticks computed | compute | loop time | PSNR | SSIM |", "|---|---|---|---|---|---|"]
    lines.append(f"| full run | {args.steps}/{args.steps} | 100% | 1.00x | - | - |")
    with tqdm(total=len(rows) * args.rounds, desc="pairs of renderings") as bar:
        for row in rows:
            bar.set_postfix_str(row.name)
            rendered, ratio = measure(pipe, call, full, row, args.rounds, bar)
            computed, share = row.steps, row.steps / args.steps
            if rendered.report is not None:
                computed, share = len(rendered.report.computed_ticks), rendered.report.compute_fraction
            quality = float(psnr(rendered.pictures, baseline).median())
            likeness = float(ssim(rendered.pictures, baseline).median())
            lines.append(
                f"| {row.name} | {computed}/{args.steps} | {share:.0%} | {ratio:.2f}x faster "
                f"| {quality:.1f} dB | {likeness:.4f} |"
            )
            if row is shown:
                accelerated = rendered
    print("\n" + "\n".join(lines) + "\n")
    print(report_of(accelerated).summary())
    pictures = draw_pairs(baseline, accelerated.pictures, args.out / "pictures.png")
    timeline = report_of(accelerated).plot(args.out / "timeline.png")
    print(f"\nbaseline | accelerated | difference: {pictures}\ndecision timeline: {timeline}")


def report_of(rendered: Rendered) -> Any:
    assert rendered.report is not None
    return rendered.report


if __name__ == "__main__":
    main()
