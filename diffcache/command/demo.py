"""demo: what a cache does on one pipeline and what it costs, in a table and in pictures, which come one by one."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from torch import Tensor

from diffcache.api import method_named
from diffcache.attach.attach import set_aside
from diffcache.command.options import NewFolder, Setting, with_method, with_setting
from diffcache.config import CacheConfig
from diffcache.evals.harness.fewer_steps import noise_schedulers, render_with_steps
from diffcache.evals.harness.loop_time import ratio_in_turns
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.rendering import Rendered, render
from diffcache.evals.harness.side_by_side import draw_columns, draw_pairs, in_terminal, stills
from diffcache.host.components import check_call
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.pictures import median_of, psnr
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.numbers_given import is_count

Run = Callable[[], Rendered]
Told = Callable[[str, Tensor, Path], None]
"""Is told of pictures as they come: the run's name, pictures [N, 3, H, W], and the file that they are in."""

FULL_RUN = "full run"
SPEEDUP = 2.0
"""Where nothing is asked for."""
HEAD = ("run", "ticks computed", "compute", "loop speed", "PSNR")


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


def demo(
    pipe: Any, call: Call, config: CacheConfig, folder: str | Path, rounds: int = 3, told: Told | None = None
) -> Demo:
    """Renders a call in full, with a method, and in the other ways that it should beat.

    Each row is rendered in turns with the full run, so that both see the same machine.

    Args:
        pipe: a pipeline; what is attached to it is set aside meanwhile.
        call: its keyword arguments, with `num_inference_steps`.
        config: the method.
        folder: for the pictures.
        rounds: pairs of renderings for each row.
        told: is called with the pictures of the full run and of the method's, as they come.

    Raises:
        ConfigError: the method is no config, or the call has no number of steps, or an argument that the pipeline does not have.
        TargetError: there is no pipeline.
    """
    if not isinstance(config, CacheConfig):
        raise ConfigError(f"demo() needs a method's config, such as EasyCacheConfig(), not {config!r}.")
    if not isinstance(call, Mapping) or "num_inference_steps" not in call:
        raise ConfigError("demo() needs the call's arguments as a dict, num_inference_steps among them.")
    if not is_count(rounds):
        raise ConfigError(f"demo() needs a whole number of rounds, one at least, not {rounds!r}.")
    check_call(pipe, call)
    with set_aside(pipe):
        steps, folder = call["num_inference_steps"], Path(folder)
        told = told or (lambda name, pictures, path: None)
        full = partial(render, pipe, call)
        reference = full().pictures  # also warms up
        told(FULL_RUN, stills(reference), draw_columns({FULL_RUN: stills(reference)}, folder / "full.png"))
        accelerated = full(config)
        pairs = draw_pairs(reference, accelerated.pictures, folder / "pictures.png")
        told(config.name, stills(accelerated.pictures), pairs)
        ticks = len(accelerated.run_report.computed_ticks)
        runs: dict[str, tuple[int, Run]] = {
            config.name: (steps, partial(full, config)),
            "easycache": (steps, partial(full, EasyCacheConfig())),
        }
        for name, noise_scheduler in noise_schedulers(pipe).items() if ticks < steps else ():
            runs[f"{ticks} steps, {name}"] = (
                ticks, partial(render_with_steps, pipe, call, ticks, noise_scheduler),
            )  # fmt: skip
        rows = [[FULL_RUN, f"{steps}/{steps}", "100%", "1.00x", "-"]]
        with click.progressbar(runs.items(), label="the same in other ways", file=sys.stderr) as bar:
            for name, (own, run) in bar:
                rendered, faster = _in_turns(full, run, rounds)
                rows.append(_row(name, rendered, own, steps, faster, reference))
        return Demo(
            markdown_table(HEAD, rows),
            accelerated.run_report.summary(),
            pairs,
            accelerated.run_report.plot(folder / "timeline.svg"),
        )


def _in_turns(full: Run, other: Run, rounds: int) -> tuple[Rendered, float]:
    """One rendering of `other`, and how many times faster its loop is than that of `full`."""
    rendered: list[Rendered] = []

    def seconds() -> float:
        rendered[:] = [other()]
        return rendered[0].seconds

    faster = ratio_in_turns(lambda: full().seconds, seconds, rounds)
    return rendered[0], faster


def _row(name: str, rendered: Rendered, own: int, steps: int, faster: float, reference: Tensor) -> list[str]:
    """A line of the table; `own` steps count for a plain run."""
    ticks, compute = own, own / steps
    if rendered.report is not None:
        ticks, compute = len(rendered.report.computed_ticks), rendered.report.compute_fraction
    near = median_of(psnr(rendered.pictures, reference))
    return [name, f"{ticks}/{steps}", f"{compute:.0%}", f"{faster:.2f}x", f"{near:.1f} dB"]


class _Shown:
    """Prints what comes, with the seconds since the start; the pictures too, where the terminal has colours enough."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()

    def __call__(self, name: str, pictures: Tensor, path: Path) -> None:
        click.echo(f"{time.perf_counter() - self.begun:5.1f} s  {name}: {path}")
        if sys.stdout.isatty() and os.environ.get("COLORTERM") in ("truecolor", "24bit"):
            columns = shutil.get_terminal_size().columns
            click.echo(in_terminal(list(pictures[: max(1, columns // 20)]), columns))


@click.command()
@with_method
@click.option("--samples", type=click.IntRange(1), default=4, show_default=True)
@click.option(
    "--rounds", type=click.IntRange(1), default=1, show_default=True, help="Pairs of renderings for each row."
)
@click.option("--out", type=NewFolder(), default=Path("outputs/demo"), show_default=True)
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

    METHOD is a method's name, a YAML file, or a folder that `tune` has written. Default: --speedup 2. Without
    --model a small model that comes with the package draws emoji.
    """
    if method is None and not options:
        speedup = speedup or SPEEDUP
    config = method_named(method, speedup=speedup, **dict(options))
    prompts = setting.asked(samples, "heldout")
    click.echo(f"{setting.source.model}: {', '.join(map(str, prompts))}")
    told = _Shown()
    pipe = setting.source.load()
    call = setting.source.call_for(pipe, prompts, range(setting.seed, setting.seed + samples))
    call["num_inference_steps"] = setting.source.steps_of(pipe)
    shown = demo(pipe, call, config, out, rounds, told)
    click.echo(f"\n{shown.table}\n\n{shown.summary}")
    click.echo(
        f"\nfull run | accelerated | difference: {shown.pictures}\ndecision timeline: {shown.timeline}\n"
        f"next: diffcache app, or diffcache demo --speedup 3 --model FOLDER_OR_HUB_ID --prompt TEXT"
    )
