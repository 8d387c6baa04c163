"""An evaluation as one self-contained page: it needs no other file and no network."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from diffcache.evals.evaluation.figures import CACHED, FULL
from diffcache.evals.evaluation.names import PAGE
from diffcache.evals.evaluation.sample_folder import SampleFolder
from diffcache.evals.harness.results import result_path
from diffcache.evals.harness.side_by_side import GAIN
from diffcache.evals.race.plot import Here, race_svg
from diffcache.evals.race.result import EXPERIMENT, RaceResult
from diffcache.evals.testbeds import zoo
from diffcache.evals.webpage.inline import data_uri
from diffcache.reports.timeline import timeline_svg

WORST = 6
"""Pairs that are shown."""
SMALL = 256
"""Width in pixels up to which a picture is enlarged without smoothing."""
LEAST_FOR_FID = 2048
"""Samples below which distances of sets are noise, and not shown."""
MARKS = {"#": "computed", "%": "some tokens", "+": "some tokens", "-": "reused", "/": "reused", "=": "reused"}
"""What each mark of a stored timeline stands for."""


HIDDEN = ("options", "config", "prompts")
"""Of the manifest: options have lines of their own, and hashes tell a reader nothing."""


@dataclass(frozen=True)
class Pair:
    """A sample with and without cache and their difference, as data URIs; `small` ones are enlarged without smoothing."""

    index: int
    prompt: str
    psnr: float
    small: bool
    width: int
    height: int
    full: str
    cached: str
    difference: str


def write_page(result: dict[str, Any], folder: Path) -> Path:
    """Writes `report.html` beside an evaluation's samples; returns its path.

    Args:
        result: what `evaluate` returned.
        folder: where the samples are.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html.j2").render(
        result=result,
        less_work=1 / result["cost"]["cached"]["compute"],
        faster=_faster(result["cost"]),
        timeline=_timeline(result["timelines"]),
        pairs=_worst(result, folder),
        settings=_settings(result["manifest"]),
        enough=result["manifest"]["samples"] >= LEAST_FOR_FID,
        least=LEAST_FOR_FID,
        race=_race(result),
    )
    partial = folder / f".{PAGE}"
    partial.write_text(page, encoding="utf-8")
    return partial.replace(folder / PAGE)


def _worst(result: dict[str, Any], folder: Path) -> list[Pair]:
    """The samples that the cache changed most."""
    manifest = result["manifest"]
    full, cached = (
        SampleFolder(folder / name, manifest["samples"], manifest["batch_size"]) for name in (FULL, CACHED)
    )
    ranked = sorted(result["per_sample"], key=lambda one: one["psnr"])[:WORST]
    return [_pair(one, str(result["prompts"][one["index"]]), full, cached) for one in ranked]


def _pair(one: dict[str, Any], prompt: str, full: SampleFolder, cached: SampleFolder) -> Pair:
    plain, made = full.sample(one["index"]), cached.sample(one["index"])
    small = plain.shape[-1] <= SMALL
    difference = (GAIN * (made - plain).abs()).clamp(0, 1)
    height, width = plain.shape[-2:]
    pictures = map(data_uri, (plain, made, difference))
    return Pair(one["index"], prompt, one["psnr"], small, width, height, *pictures)


def _faster(cost: dict[str, Any]) -> float:
    """How many times faster the denoising loop is, by the medians of both runs."""
    return float(cost["full"]["loop_seconds_median"] / cost["cached"]["loop_seconds_median"])


def _timeline(timelines: dict[str, str]) -> str:
    rows = {
        f"guidance pass {branch}" if len(timelines) > 1 else "model evaluations": {
            tick: MARKS[mark] for tick, mark in enumerate(marks) if mark in MARKS
        }
        for branch, marks in timelines.items()
    }
    return timeline_svg(max(map(len, timelines.values()), default=0), rows)


def _settings(manifest: dict[str, Any]) -> dict[str, str]:
    """What was run, in words: without what was left open, and an option in each line."""
    options = {f"option {name}": value for name, value in manifest["options"].items() if value is not None}
    told = {name: value for name, value in manifest.items() if name not in HIDDEN} | options
    empty: tuple[Any, ...] = (None, {}, [])
    return {name.replace("_", " "): str(value) for name, value in told.items() if value not in empty}


def _race(result: dict[str, Any]) -> str | None:
    """The plot of the race with this run in it, if the model is a testbed on which it has been run."""
    model = result["manifest"]["model"]
    path = result_path(EXPERIMENT, model)
    if model not in zoo.ALL or not path.exists():
        return None
    psnr = result["fidelity_and_alignment"]["psnr"]["mean"]
    here = Here(result["manifest"]["method"], result["cost"]["cached"]["compute"], psnr)
    return race_svg(RaceResult.load(path), here)
