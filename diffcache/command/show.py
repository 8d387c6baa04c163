"""show: what a folder holds, as text."""

import json
import math
from pathlib import Path
from typing import Any

import click

from diffcache.evals.evaluation.names import RESULT
from diffcache.method_config import MethodConfig
from diffcache.profiling.recording.recording import JSON_NAME as RECORDING
from diffcache.profiling.recording.recording import Recording
from diffcache.profiling.tuning.artifact import TUNE, figures_in, missed, unit_of
from diffcache.profiling.tuning.plain_steps import EVEN, FEWER, better_without
from diffcache.schedulers.artifact import CONFIG_NAME, JSON_NAME
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.schedule import GUIDANCE_OPTIONS, GUIDANCE_SCALE, Schedule, expected_error_in

FIGURES = ("median", "mean", "worst")
"""Of what was measured on a part of the prompts."""

MANY, LONG = 12, 60
"""The most rows of a table, and the most characters of a value, that are printed."""


def show(folder: str | Path) -> str:
    """What a folder holds: a schedule, a method, what `tune` measured, an evaluation, a recording.

    Raises:
        ScheduleError: nothing that diffcache has written lies there, or it is damaged.
    """
    if not isinstance(folder, (str, Path)):
        raise ScheduleError(f"show() takes a folder or a hub id, not {folder!r}.")
    found = [
        text for file, told in TOLD.items() if (Path(folder) / file).exists() for text in [told(Path(folder))]
    ]
    if not found and "/" in str(folder) and not Path(folder).exists():
        found = [_schedule(folder)]
    if not found:
        raise ScheduleError(f"{folder}: there is nothing that diffcache has written: pass a folder of --out.")
    return "\n\n".join(found)


def _schedule(folder: str | Path) -> str:
    schedule = Schedule.from_pretrained(folder)
    rows = [
        f"  {marks}  {site} {branch}" for site, of in schedule.table.items() for branch, marks in of.items()
    ]
    more = [f"  ... and {len(rows) - MANY} rows more"] if len(rows) > MANY else []
    models = ", ".join(f"{name} ({model.name})" for name, model in schedule.models.items())
    computed = f"{len(schedule.computed_ticks)} of {schedule.num_ticks} ticks"
    head = f"schedule for {models}, {schedule.noise_scheduler}, {computed} computed\n  (# computed, - predicted, / straight line, = held)"
    described = dict(schedule.predictor)
    guidance = _guidance(described.pop(GUIDANCE_SCALE, None), described.pop(GUIDANCE_OPTIONS, {}))
    predictor = f"  predictor: {_said(described)}"
    corrections = [f"  corrections: {', '.join(schedule.corrections)}"] if schedule.corrections else []
    return "\n".join([head, *rows[:MANY], *more, predictor, *guidance, *_plan(schedule), *corrections])


def _guidance(scale: float | None, options: dict[str, float]) -> list[str]:
    """How the recorded run guided."""
    said = [] if scale is None else [f"scale of the passes {scale:g}"]
    said += [f"{name}={value:g}" for name, value in options.items()]
    return [f"  guidance: {', '.join(said)}"] if said else []


def _with_infinities(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures with what null stands for in JSON: pictures that are no numbers are infinitely far off."""
    found = {name: -math.inf if figures.get(name) is None else figures[name] for name in FIGURES}
    inner = {name: _with_infinities(its) for name, its in figures.items() if isinstance(its, dict)}
    return {**figures, **found, **inner}


def _plan(schedule: Schedule) -> list[str]:
    """Of a plan of `trajectory`: what it was made with, and so whether it can be made anew for other runs."""
    if schedule.predictor["name"] != "conditional":
        return []
    if "angles" in schedule.predictor:
        return ["  plan: by what was measured of the pipeline; resample=True makes it anew for other runs"]
    return ["  plan: for this run only; in other runs use accelerate(pipe, speedup=)"]


def _config(folder: Path) -> str:
    config = MethodConfig.from_pretrained(folder)
    return f"method {config.name}\n  {_said(config.options())}"


def _tuned(folder: Path) -> str:
    said = figures_in(folder)
    made, measured = dict(said("producer", dict)), dict(said("measured", dict))
    said("measured.compute_fraction", float)
    made.pop("proposal", None)
    lines = [f"tuned: {_said(made)}", f"  compute: {measured['compute_fraction']:.1%} of the full run's work"]
    unit = unit_of(made)
    miss = missed(made, measured)
    lines += [] if miss is None else [f"  {miss}"]
    expected = expected_error_in(measured)
    if expected is not None:
        lines.append(f"  expected error of the result: {expected:.2%}")
    for part in ("choose", "verify"):
        if part in measured:
            of = measured[part] = _with_infinities(measured[part])
            lines.append(
                f"  on the prompts to {part}: {of['samples']} samples, median {of['median']:.2f}{unit}, worst {of['worst']:.2f}{unit}"
            )
    if "verify" not in measured:
        return "\n".join(
            [*lines, "  not verified: no prompts were left for that, or the search was interrupted."]
        )
    advice = better_without(measured, unit)
    return "\n".join(
        [*lines, *_promise(measured["verify"], unit), *([] if advice is None else [f"  {advice}"])]
    )


def _promise(verify: dict[str, Any], unit: str) -> list[str]:
    """What the verification allows to say."""
    sure = f"with {verify['confidence']:.0%} confidence"
    lines = []
    for name, value in verify.items():
        if name.endswith(" reach"):
            what = (
                f"at least {value:.2f}{unit}"
                if value is not None
                else "nothing that so few samples could show"
            )
            lines.append(f"  {name} on unseen prompts: {what}, {sure}")
    if "kept" in verify:
        share = verify["least share that keeps it"]
        lines.append(
            f"  target kept by {verify['kept']} of {verify['samples']}: by at least {share:.0%} of all, {sure}"
        )
        if not verify["holds"]:
            lines.append(
                f"  that is less than was asked for: it takes at least {verify['samples that could show it']} samples to verify on"
            )
    even = verify.get(EVEN)
    if even is not None:
        lines.append(f"  as many evenly spaced ticks: median {even['median']:.2f}{unit}")
    plain = verify.get(FEWER)
    if plain is not None:
        lines.append(f"  as many plain steps: median {plain['median']:.2f}{unit}")
    return lines


def evaluated(folder: Path) -> str:
    """The figures of an evaluation."""
    result = json.loads((folder / RESULT).read_text())
    cost = result["cost"]["cached"]
    lines = [
        f"  {name}: median {of['median']:.4f}, mean {of['mean']:.4f}"
        for name, of in result["fidelity_and_alignment"].items()
    ]
    manifest = result["manifest"]
    head = f"evaluation of {manifest['method']} on {manifest['model']}, {manifest['samples']} samples: {cost['compute']:.1%} of the work"
    return "\n".join([head, *lines])


def _recorded(folder: Path) -> str:
    return f"recording\n{Recording.load(folder).table()}"


TOLD = {JSON_NAME: _schedule, CONFIG_NAME: _config, TUNE: _tuned, RESULT: evaluated, RECORDING: _recorded}
"""What each file is told by."""


def _said(options: dict[str, Any]) -> str:
    """Options with their values; of long ones, such as a covariance, the names alone."""
    given = {name: str(value) for name, value in options.items() if value is not None}
    long = [name for name, text in given.items() if len(text) > LONG]
    said = ", ".join(f"{name}={text}" for name, text in given.items() if name not in long)
    return f"{said}; not shown: {', '.join(long)}" if long else said


@click.command()
@click.argument("folder")
def command(folder: str) -> None:
    """Print what a folder (or a hub id) holds: a schedule, a method, what `tune` measured, an evaluation, a recording."""
    click.echo(show(folder))
