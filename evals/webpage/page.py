"""An evaluation as one self-contained page: no file and no network beside it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from diffcache.evals.harness.evaluation import PAGE
from diffcache.evals.harness.generation import Arm
from diffcache.evals.harness.measuring import CACHED, FULL
from diffcache.evals.harness.provenance import RESULTS
from diffcache.evals.race.outcome import Outcome
from diffcache.evals.race.pareto import race_svg
from diffcache.evals.testbeds import zoo
from diffcache.evals.webpage.inline import data_uri

WORST = 6
SMALL = 256
"""Width up to which pixels are shown as squares instead of smoothed."""


@dataclass(frozen=True)
class Pair:
    """A sample with and without cache, as data URIs; small ones are shown with their pixels."""

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
    return [_pair(one, str(result["prompts"][one["index"]]), full, cached) for one in ranked]


def _pair(one: dict[str, Any], prompt: str, full: Arm, cached: Arm) -> Pair:
    plain, made = full.sample(one["index"]), cached.sample(one["index"])
    small = plain.shape[-1] <= SMALL
    return Pair(one["index"], prompt, one["psnr"], small, data_uri(plain), data_uri(made))


def _pareto(model: str) -> str | None:
    """The race, where the model is a testbed on which it has been run."""
    path = RESULTS / f"race_{model}.json"
    return race_svg(Outcome.load(path)) if model in zoo.NAMES and path.exists() else None
