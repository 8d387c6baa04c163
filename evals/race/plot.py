"""Draws a race: fidelity over compute, one line for each contender."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from diffcache.evals.race import ours
from diffcache.evals.race.budgets import budgets_for
from diffcache.evals.race.result import RaceResult
from diffcache.evals.race.row import ROUNDING, Row
from diffcache.evals.race.standings import own


class Look(NamedTuple):
    """How a contender is drawn, in every plot alike."""

    colour: str
    marker: str
    line: str
    width: float = 1.0
    size: float = 5.0


LOOKS = {
    ours.FEWER: Look("#777777", "o", "-", 2.0),
    own(ours.SPEEDUP): Look("#0b6e4f", "^", "-", 2.0),
    own(ours.EVEN): Look("#b7b64a", "s", "--", 2.0),
    own(ours.TUNED): Look("#12304a", "D", "-", 2.0),
    own(ours.TYPED): Look("#e07b00", "X", "", size=9.0),
}
"""Of contenders that have one of their own."""
PACKAGES = {
    "diffcache": Look("#7fa86e", "v", ":"),
    "cache-dit": Look("#c8553d", "P", "-."),
    "diffusers": Look("#3d5a98", "<", ":"),
    "DeepCache": Look("#8e5ea2", ">", "--"),
}
"""Of the best other contender of each package."""


@dataclass(frozen=True)
class Here:
    """A run that is marked in the plot: its name, its share of the compute, and its mean PSNR in dB."""

    name: str
    compute: float
    psnr: float


def draw_race(result: RaceResult, path: Path) -> Path:
    """Writes the plot as SVG or PNG, by the path's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _figure(result).savefig(path, dpi=110)
    return path


def race_svg(result: RaceResult, here: Here | None = None) -> str:
    """The plot as an `<svg>` element, for a page, with a run marked in it."""
    text = io.StringIO()
    _figure(result, here).savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]


def lines(result: RaceResult) -> Iterator[tuple[str, list[Row]]]:
    """The scored settings of each contender, the cheapest first; without what computes everything."""
    scored = [row for row in result.rows if row.part == "score" and row.compute < 1]
    for name in dict.fromkeys(row.contender for row in scored):
        yield name, sorted((row for row in scored if row.contender == name), key=lambda row: row.compute)


def few(result: RaceResult) -> Iterator[tuple[str, list[Row]]]:
    """Of `lines` those of `LOOKS`, and of each package the one that is best on average.

    A cached solver other than the testbed's own is left out: its pictures are near the true solution, not near this full run.
    """
    found = dict(lines(result))
    found.pop(own(ours.CACHED_SOLVER), None)
    for package in PACKAGES:
        own_lines = {
            name: rows for name, rows in found.items() if name.split(":")[0] == package and name not in LOOKS
        }
        best = max(
            own_lines,
            key=lambda name: sum(row.mean_psnr for row in found[name]) / len(found[name]),
            default=None,
        )
        for name in own_lines.keys() - {best}:
            del found[name]
    yield from found.items()


def _figure(result: RaceResult, here: Here | None = None) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    axes = figure.subplots()
    for budget in budgets_for(result.steps):
        axes.axvline(1 / budget, color="#dddddd", linewidth=1, zorder=0)
        axes.annotate(
            f" {budget:.3g}x", (1 / budget, 0.99), xycoords=("data", "axes fraction"), va="top", fontsize=8
        )
    axes.axhline(ROUNDING, color="#999999", linewidth=1, linestyle=":", label="less than rounding to 8 bits")
    for name, rows in few(result):
        look = LOOKS.get(name) or PACKAGES[name.split(":")[0]]
        axes.plot(
            [row.compute for row in rows],
            [row.mean_psnr for row in rows],
            label=name,
            color=look.colour,
            linewidth=look.width,
            linestyle=look.line,
            marker=look.marker,
            markersize=look.size,
            zorder=2 if look.line else 5,
        )
    if here is not None:
        x, y = here.compute, min(here.psnr, ROUNDING)
        axes.plot(
            x,
            y,
            "*",
            color="#d1242f",
            markeredgecolor="white",
            markersize=17,
            label=f"this run: {here.name}",
            zorder=9,
        )
    axes.set_xlabel("compute, share of the full run's")
    axes.set_ylabel("PSNR of 8-bit pictures to the full run, dB")
    axes.set_title(f"{result.testbed}: 16 scored samples, {result.steps} steps", fontsize=10)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right upper", fontsize=7)
    return figure
