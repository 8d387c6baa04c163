"""Draws a race: fidelity over compute, one line for each method."""

import io
from pathlib import Path
from typing import Any

from diffcache.evals.race.contender import OURS, full_name
from diffcache.evals.race.margins import BUDGETS
from diffcache.evals.race.raced_testbed import FEWER, Measurement
from diffcache.evals.race.result import RaceResult

MARKERS = "osD^vP*X<>"
COLOURS = {"diffcache": "#0b6e4f", "cache-dit": "#c8553d", "diffusers": "#3d5a98", "DeepCache": "#8e5ea2"}
"""Of the packages, in the order of the legend."""
PLAIN = "#777777"


def draw_race(result: RaceResult, path: Path) -> Path:
    """Writes the plot as SVG or PNG, by the path's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _figure(result).savefig(path, dpi=110)
    return path


def race_svg(result: RaceResult) -> str:
    """The plot as an `<svg>` element, for a page."""
    text = io.StringIO()
    _figure(result).savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]


def lines(result: RaceResult) -> dict[tuple[str, str], list[Measurement]]:
    """Measurements by (package, method), the cheapest first, methods as the legend has them: ours, the peers', the plain ones.

    What computes everything is left out: its PSNR has no bound.
    """
    found: dict[tuple[str, str], list[Measurement]] = {}
    for row in sorted((*result.rows, *result.fewer_steps), key=lambda row: row.compute):
        if row.compute < 1:
            found.setdefault((row.package, row.name), []).append(row)
    order = [*COLOURS, ""]
    return dict(sorted(found.items(), key=lambda line: (order.index(line[0][0]), line[0][1])))


def _figure(result: RaceResult) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 5.2), layout="constrained")
    axes = figure.subplots()
    for budget in BUDGETS:
        axes.axvline(1 / budget, color="#dddddd", linewidth=1, zorder=0)
        axes.annotate(
            f" {budget:g}x", (1 / budget, 0.99), xycoords=("data", "axes fraction"), va="top", fontsize=8
        )
    for i, ((package, name), rows) in enumerate(lines(result).items()):
        ours = package == OURS
        axes.plot(
            [row.compute for row in rows],
            [row.psnr_full for row in rows],
            label=name if name.startswith(FEWER) else full_name(package, name),
            color=COLOURS.get(package, PLAIN),
            linewidth=2 if ours else 1,
            linestyle="-" if ours else "--",
            marker=MARKERS[i % len(MARKERS)],
            markersize=4,
        )
    axes.set_xlabel("compute, share of the full run's")
    axes.set_ylabel("PSNR to the full run, dB")
    axes.set_title(f"{result.testbed}: {result.samples} samples, {result.steps} steps", fontsize=10)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right upper", fontsize=7)
    return figure
