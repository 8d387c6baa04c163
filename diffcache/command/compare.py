"""compare: methods beside each other, evenly spaced ticks, and fewer steps at the same compute."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch

from diffcache.api import method_named
from diffcache.attach.attach import set_aside
from diffcache.command.options import Setting, in_batches, with_setting
from diffcache.config import CacheConfig
from diffcache.evals.harness.comparison import Row, as_json, table
from diffcache.evals.harness.fewer_steps import noise_schedulers, render_with_steps
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.quality import References
from diffcache.evals.harness.rendering import Rendered, render
from diffcache.evals.harness.results import write_result
from diffcache.host.components import check_call
from diffcache.profiling.recording.calling import Call
from diffcache.recipes.even import EvenConfig
from diffcache.schedulers.errors import ConfigError


def compare(
    pipe: Any, calls: Sequence[Call], methods: Mapping[str, CacheConfig | None], *, fewer_steps: bool = True
) -> list[Row]:
    """Methods on the same calls, each with its controls at the same compute. PSNR and SSIM are medians over the samples.

    Args:
        pipe: a pipeline; what is attached to it is set aside meanwhile.
        calls: with `num_inference_steps`, and a generator for each sample.
        methods: by the name that the table shows.
        fewer_steps: add the plain pipeline with as many steps as a method computes ticks, under each noise scheduler.

    Returns:
        A row for each method, then for each number of computed ticks the controls: as many evenly spaced ticks, and fewer steps.

    Raises:
        ConfigError: there are no calls, they do not say the same number of steps, one has an argument that the pipeline does not
            have, or a method is no config.
        TargetError: there is no pipeline.
    """
    if not isinstance(methods, Mapping) or not all(
        config is None or isinstance(config, CacheConfig) for config in methods.values()
    ):
        raise ConfigError(
            'compare() needs configs by name: {"mine": methods()["easycache"](threshold=0.05)}.'
        )
    if not calls or any("num_inference_steps" not in call for call in calls):
        raise ConfigError("compare() needs calls that say num_inference_steps, one at least.")
    if len({call["num_inference_steps"] for call in calls}) > 1:
        raise ConfigError("compare() needs calls of the same num_inference_steps.")
    for call in calls:
        check_call(pipe, call)
    with set_aside(pipe):
        runs = _Runs(pipe, calls)
        rows = [runs.row(name, config) for name, config in methods.items()]
        for ticks in sorted({row.ticks for row in rows if 0 < row.ticks < row.total}, reverse=True):
            rows.append(runs.row(f"{ticks} even ticks", EvenConfig(speedup=rows[0].total / ticks)))
            rows += runs.fewer_steps(ticks) if fewer_steps else []
    return rows


class _Runs:
    """The full runs of some calls, and rows of other runs of these."""

    def __init__(self, pipe: Any, calls: Sequence[Call]) -> None:
        self.pipe, self.calls = pipe, calls
        self.steps: int = calls[0]["num_inference_steps"]
        self.references = References(torch.cat([render(pipe, call).pictures for call in calls]))

    def row(self, name: str, config: CacheConfig | None) -> Row:
        rendered = [render(self.pipe, call, config) for call in self.calls]
        reports = [one.run_report for one in rendered]
        computed = [len(report.computed_ticks) for report in reports]
        compute = sum(report.compute_fraction for report in reports) / len(reports)
        return self._row(name, rendered, round(sum(computed) / len(computed)), reports[0].num_ticks, compute)

    def fewer_steps(self, steps: int) -> list[Row]:
        if not hasattr(self.pipe, "scheduler"):
            return []
        return [
            self._row(
                f"{steps} steps, {name}",
                [render_with_steps(self.pipe, call, steps, noise_scheduler) for call in self.calls],
                steps,
                self.steps,
                steps / self.steps,
            )
            for name, noise_scheduler in noise_schedulers(self.pipe).items()
        ]

    def _row(self, name: str, rendered: Sequence[Rendered], ticks: int, total: int, compute: float) -> Row:
        quality = self.references.quality(torch.cat([one.pictures for one in rendered]))
        return Row(name=name, ticks=ticks, total=total, compute=round(compute, 4), **vars(quality))


@click.command()
@click.argument("methods", nargs=-1)
@click.option(
    "--speedup", type=float, multiple=True, help="Add the default method with this speed-up; may be repeated."
)
@click.option("--samples", type=click.IntRange(1), default=8, show_default=True)
@click.option(
    "--no-fewer-steps", is_flag=True, help="Leave out the rows of the plain pipeline with fewer steps."
)
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="File for the rows.")
@with_setting
@in_batches
def command(
    setting: Setting,
    methods: tuple[str, ...],
    speedup: tuple[float, ...],
    samples: int,
    no_fewer_steps: bool,
    file: Path | None,
) -> None:
    """Compare METHODS (names, YAML files, or folders that `tune` has written) with the full run, on the same prompts and seeds.

    Beside each method stand its controls at the same compute: as many evenly spaced ticks, and fewer plain steps.
    """
    asked: dict[str, CacheConfig | None] = {name: method_named(name) for name in methods}
    asked |= {f"speedup={value:g}": method_named(speedup=value) for value in speedup}
    if not asked:
        asked = {"accelerate(pipe)": method_named()}
    pipe = setting.source.load()
    prompts, steps = setting.asked(samples, "heldout"), setting.source.steps_of(pipe)
    if steps < 2:
        raise ConfigError("a run of one step has nothing to cache: give --steps.")
    calls = [{**call, "num_inference_steps": steps} for call in setting.calls(pipe, prompts)]
    rows = compare(pipe, calls, asked, fewer_steps=not no_fewer_steps)
    click.echo(table(rows))
    if file is not None:
        write_result(file, header(str(pipe.device)), {"rows": as_json(rows)})
