"""demo: what a cache does on one pipeline and what it costs, in a table and in pictures."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from diffcache.api import method_named
from diffcache.command.options import Setting, with_method, with_setting
from diffcache.config import CacheConfig
from diffcache.evals.harness.fewer_steps import noise_schedulers, render_with_steps
from diffcache.evals.harness.loop_time import ratio_in_turns
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.quality import References
from diffcache.evals.harness.rendering import Rendered, render
from diffcache.evals.harness.side_by_side import draw_pairs
from diffcache.profiling.recording.calling import Call
from diffcache.recipes.easycache import EasyCacheConfig

Run = Callable[[], Rendered]
HEAD = ("run", "ticks computed", "compute", "loop time", "PSNR", "SSIM")


@dataclass(frozen=True)
class Demo:
    """What a demonstration shows.

    Attributes:
        table: in Markdown: the method, EasyCache, and fewer steps under each noise scheduler.
        summary: of the method's run.
        pictures: file with the full run, the accelerated run and their difference.
        timeline: file with the run's decisions.
    """

    table: str
    summary: str
    pictures: Path
    timeline: Path


def demo(pipe: Any, call: Call, config: CacheConfig, folder: Path, rounds: int = 3) -> Demo:
    """Renders a call in full, with a method, and in the other ways that it should beat.

    Each row is rendered in turns with the full run, so that both see the same machine.

    Args:
        pipe: a plain pipeline; it is plain afterwards.
        call: its keyword arguments, with `num_inference_steps`.
        config: the method.
        folder: for the pictures.
        rounds: pairs of renderings for each row.
    """
    steps = call["num_inference_steps"]
    full = partial(render, pipe, call)
    references = References(full().pictures)  # also warms up
    accelerated = full(config)
    ticks = len(accelerated.run_report.computed_ticks)
    runs: dict[str, tuple[int, Run]] = {
        config.name: (steps, partial(full, config)),
        "easycache": (steps, partial(full, EasyCacheConfig())),
    }
    for name, noise_scheduler in noise_schedulers(pipe).items() if ticks < steps else ():
        runs[f"{ticks} steps, {name}"] = (
            ticks, partial(render_with_steps, pipe, call, ticks, noise_scheduler),
        )  # fmt: skip
    rows = [["full run", f"{steps}/{steps}", "100%", "1.00x", "-", "-"]]
    with click.progressbar(runs.items(), label="runs") as bar:
        for name, (own, run) in bar:
            rendered, faster = _in_turns(full, run, rounds)
            rows.append(_row(name, rendered, own, steps, faster, references))
    return Demo(
        markdown_table(HEAD, rows),
        accelerated.run_report.summary(),
        draw_pairs(references.full, accelerated.pictures, folder / "pictures.png"),
        accelerated.run_report.plot(folder / "timeline.png"),
    )


def _in_turns(full: Run, other: Run, rounds: int) -> tuple[Rendered, float]:
    """One rendering of `other`, and how many times faster its loop is than that of `full`."""
    rendered: list[Rendered] = []

    def seconds() -> float:
        rendered[:] = [other()]
        return rendered[0].seconds

    faster = ratio_in_turns(lambda: full().seconds, seconds, rounds)
    return rendered[0], faster


def _row(
    name: str, rendered: Rendered, own: int, steps: int, faster: float, references: References
) -> list[str]:
    """A line of the table; `own` steps count for a plain run."""
    ticks, compute = own, own / steps
    if rendered.report is not None:
        ticks, compute = len(rendered.report.computed_ticks), rendered.report.compute_fraction
    quality = references.quality(rendered.pictures)
    psnr, ssim = f"{quality.psnr_full:.1f} dB", f"{quality.ssim_full:.4f}"
    return [name, f"{ticks}/{steps}", f"{compute:.0%}", f"{faster:.2f}x faster", psnr, ssim]


@click.command()
@with_method
@click.option("--samples", type=click.IntRange(1), default=4, show_default=True)
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Pairs of renderings for each row."
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("outputs/demo"), show_default=True
)
@with_setting
def command(
    setting: Setting,
    method: str | None,
    speedup: float | None,
    options: tuple[tuple[str, Any], ...],
    samples: int,
    rounds: int,
    out: Path,
) -> None:
    """Show what a cache does on one pipeline, and what it costs, beside EasyCache and fewer steps.

    METHOD is a method's name or a folder that `tune` has written. Default: what `accelerate(pipe)` uses.
    """
    config = method_named(method, speedup=speedup, **dict(options))
    pipe = setting.source.load()
    prompts = setting.asked(samples, "heldout")
    call = setting.source.call_for(pipe, prompts, range(setting.seed, setting.seed + samples))
    call["num_inference_steps"] = setting.source.steps_of(pipe)
    shown = demo(pipe, call, config, out, rounds)
    click.echo(f"\n{shown.table}\n\n{shown.summary}")
    click.echo(
        f"\nbaseline | accelerated | difference: {shown.pictures}\ndecision timeline: {shown.timeline}"
    )
