"""An evaluation as one self-contained page: no file and no network beside it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from diffcache.evals.evaluation import PAGE
from diffcache.evals.generation import Arm
from diffcache.evals.measuring import CACHED, FULL
from diffcache.evals.provenance import RESULTS
from diffcache.evals.race.outcome import Outcome
from diffcache.evals.race.pareto import race_svg
from diffcache.evals.webpage.inline import data_uri

WORST = 6


@dataclass(frozen=True)
class Pair:
    """A sample with and without cache, as data URIs."""

    index: int
    prompt: str
    psnr: float
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
        result=result, pairs=_worst(result, folder), pareto=_pareto(result["manifest"]["model"])
    )
    partial = folder / f".{PAGE}"
    partial.write_text(page, encoding="utf-8")
    return partial.replace(folder / PAGE)


def _worst(result: dict[str, Any], folder: Path) -> list[Pair]:
    """The samples that the cache changed most."""
    manifest = result["manifest"]
    full, cached = (Arm(folder / n, manifest["samples"], manifest["batch_size"]) for n in (FULL, CACHED))
    ranked = sorted(result["per_sample"], key=lambda one: one["psnr"])[:WORST]
    return [
        Pair(
            one["index"],
            str(result["prompts"][one["index"]]),
            one["psnr"],
            data_uri(full.sample(one["index"])),
            data_uri(cached.sample(one["index"])),
        )
        for one in ranked
    ]


def _pareto(model: str) -> str | None:
    """The race on a testbed, where it has been run."""
    path = RESULTS / f"race_{Path(model).name}.json"
    return race_svg(Outcome.load(path)) if path.exists() else None
