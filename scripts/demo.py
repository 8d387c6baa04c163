"""Shows on one pipeline what a cache does and what it costs.

    python scripts/demo.py                                  # the Flux testbed that comes with the repository
    python scripts/demo.py --model wan                      # another testbed
    python scripts/demo.py --model black-forest-labs/FLUX.1-dev --prompt "a fox in the snow" --steps 28

Each row of the table is rendered in turns with the full run, so that both see the same machine.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tqdm import tqdm

from diffcache.api import DEFAULT, methods
from diffcache.config import CacheConfig
from diffcache.evals.harness.command_line import MODEL, parser
from diffcache.evals.harness.fewer_steps import noise_schedulers, render_with_steps
from diffcache.evals.harness.loop_time import ratio_in_turns
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.pipelines import call_for, load_pipeline
from diffcache.evals.harness.quality import References
from diffcache.evals.harness.rendering import Rendered, render
from diffcache.evals.harness.side_by_side import draw_pairs
from diffcache.evals.testbeds import splits, zoo
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.errors import DiffcacheError

Run = Callable[[], Rendered]
HEAD = ["run", "ticks computed", "compute", "loop time", "PSNR", "SSIM"]


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--model", default="flux", help=MODEL)
    options.add_argument(
        "--prompt", default="a large red ring top left", help="for pipelines other than testbeds"
    )
    options.add_argument("--method", choices=sorted(methods()), help="default: what accelerate(pipe) uses")
    options.add_argument(
        "--speedup",
        type=float,
        help="at least this much less compute; with --method: its nearest whole interval",
    )
    options.add_argument("--steps", type=int, default=50)
    options.add_argument("--samples", type=int, default=4)
    options.add_argument("--rounds", type=int, default=3, help="pairs of renderings for each row")
    options.add_argument("--out", type=Path, default=Path("outputs/demo"), help="folder for the pictures")
    args = options.parse_args()
    try:
        args.config = chosen(args)
    except DiffcacheError as error:
        options.error(str(error))
    return args


def chosen(args: argparse.Namespace) -> CacheConfig:
    """The method to show."""
    if args.method is None:
        return DEFAULT if args.speedup is None else TrajectoryConfig(speedup=args.speedup)
    config = methods()[args.method]()
    return config if args.speedup is None else config.replace(interval=max(1, round(args.speedup)))


def in_turns(full: Run, other: Run, rounds: int) -> tuple[Rendered, float]:
    """One rendering of `other`, and how many times faster its loop is than that of `full`."""
    rendered: list[Rendered] = []

    def seconds() -> float:
        rendered[:] = [other()]
        return rendered[0].seconds

    faster = ratio_in_turns(lambda: full().seconds, seconds, rounds)
    return rendered[0], faster


def row(
    name: str, rendered: Rendered, steps: int, of: int, faster: float, references: References
) -> list[str]:
    """A line of the table; `steps` counts for a plain run, `of` are the full run's."""
    ticks, compute = steps, steps / of
    if rendered.report is not None:
        ticks, compute = len(rendered.report.computed_ticks), rendered.report.compute_fraction
    quality = references.quality(rendered.pictures)
    psnr, ssim = f"{quality.psnr_full:.1f} dB", f"{quality.ssim_full:.4f}"
    return [name, f"{ticks}/{of}", f"{compute:.0%}", f"{faster:.2f}x faster", psnr, ssim]


def main() -> None:
    args = arguments()
    testbed = args.model in splits.FITTING
    prompts = zoo.prompts(args.model, args.samples, "heldout") if testbed else [args.prompt] * args.samples
    pipe = load_pipeline(args.model)
    call = call_for(args.model, prompts, range(args.samples), args.steps)
    full = partial(render, pipe, call)
    references = References(full().pictures)  # also warms up
    accelerated = full(args.config)
    ticks = len(accelerated.run_report.computed_ticks)
    runs: dict[str, tuple[int, Run]] = {
        args.config.name: (args.steps, partial(full, args.config)),
        "easycache": (args.steps, partial(full, EasyCacheConfig())),
    }
    for name, noise_scheduler in noise_schedulers(pipe).items():
        fewer = partial(render_with_steps, pipe, call, ticks, noise_scheduler)
        runs[f"{ticks} steps, {name}"] = (ticks, fewer)
    rows = [["full run", f"{args.steps}/{args.steps}", "100%", "1.00x", "-", "-"]]
    for name, (steps, run) in tqdm(runs.items(), desc="runs"):
        rendered, faster = in_turns(full, run, args.rounds)
        rows.append(row(name, rendered, steps, args.steps, faster, references))
    print(f"\n{markdown_table(HEAD, rows)}\n\n{accelerated.run_report.summary()}")
    pictures = draw_pairs(references.full, accelerated.pictures, args.out / "pictures.png")
    timeline = accelerated.run_report.plot(args.out / "timeline.png")
    print(f"\nbaseline | accelerated | difference: {pictures}\ndecision timeline: {timeline}")


if __name__ == "__main__":
    main()
