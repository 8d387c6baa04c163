"""Draws a race: fidelity over compute, one line for each method."""

import io
from pathlib import Path
from typing import Any

from diffcache.evals.race.course import FEWER, Lap
from diffcache.evals.race.outcome import Outcome
from diffcache.evals.race.verdict import BUDGETS

MARKERS = "osD^vP*X<>"
FAMILIES = {"diffcache": "#0b6e4f", "cache-dit": "#c8553d", "diffusers": "#3d5a98", "DeepCache": "#8e5ea2"}
"""Colours of the packages; the plain pipeline is grey."""
PLAIN = "#777777"


def draw_race(outcome: Outcome, path: Path) -> Path:
    """Writes the plot as SVG or PNG, by the path's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _figure(outcome).savefig(path, dpi=110)
    return path


def race_svg(outcome: Outcome) -> str:
    """The plot as an `<svg>` element, for a page."""
    text = io.StringIO()
    _figure(outcome).savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]


def lines(outcome: Outcome) -> dict[tuple[str, str], list[Lap]]:
    """Laps by (package, method), the cheapest first; full runs are left out, since their PSNR has no bound."""
    found: dict[tuple[str, str], list[Lap]] = {}
    for lap in sorted((*outcome.laps, *outcome.fewer), key=lambda lap: lap.compute):
        if lap.compute < 1:
            found.setdefault((lap.package, lap.name), []).append(lap)
    return found


def _figure(outcome: Outcome) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 5.2), layout="constrained")
    axes = figure.subplots()
    for budget in BUDGETS:
        axes.axvline(1 / budget, color="#dddddd", linewidth=1, zorder=0)
        axes.annotate(
            f" {budget:g}x", (1 / budget, 0.99), xycoords=("data", "axes fraction"), va="top", fontsize=8
        )
    for i, ((package, name), laps) in enumerate(sorted(lines(outcome).items(), key=_place)):
        ours = package == "diffcache"
        axes.plot(
            [lap.compute for lap in laps],
            [lap.psnr_full for lap in laps],
            label=name if name.startswith(FEWER) else f"{package}: {name}",
            color=FAMILIES.get(package, PLAIN),
            linewidth=2 if ours else 1,
            linestyle="-" if ours else "--",
            marker=MARKERS[i % len(MARKERS)],
            markersize=4,
        )
    axes.set_xlabel("compute, share of the full run's")
    axes.set_ylabel("PSNR to the full run, dB")
    axes.set_title(f"{outcome.testbed}: {outcome.samples} samples, {outcome.steps} steps", fontsize=10)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right upper", fontsize=7)
    return figure


def _place(line: tuple[tuple[str, str], list[Lap]]) -> tuple[int, str]:
    """In the legend: ours, the peers, the plain pipeline."""
    package, name = line[0]
    return [*FAMILIES, ""].index(package), name
