"""An evaluation as one self-contained page: it needs no other file and no network."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from diffcache.evals.evaluation.evaluate import PAGE
from diffcache.evals.evaluation.figures import CACHED, FULL
from diffcache.evals.evaluation.sample_folder import SampleFolder
from diffcache.evals.harness.results import result_path
from diffcache.evals.race.plot import race_svg
from diffcache.evals.race.result import EXPERIMENT, RaceResult
from diffcache.evals.testbeds import zoo
from diffcache.evals.webpage.inline import data_uri

WORST = 6
"""Pairs that are shown."""
SMALL = 256
"""Width in pixels up to which a picture is enlarged without smoothing."""


@dataclass(frozen=True)
class Pair:
    """A sample with and without cache, as data URIs; `small` ones are enlarged without smoothing."""

    index: int
    prompt: str
    psnr: float
    small: bool
    full: str
    cached: str


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
        result=result, pairs=_worst(result, folder), race=_race(result["manifest"]["model"])
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
    return Pair(one["index"], prompt, one["psnr"], small, data_uri(plain), data_uri(made))


def _race(model: str) -> str | None:
    """The plot of the race, if the model is a testbed on which it has been run."""
    path = result_path(EXPERIMENT, model)
    return race_svg(RaceResult.load(path)) if model in zoo.ALL and path.exists() else None
