"""Draws the decisions of a run as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffcache.reports.run_report import RunReport

COMPUTED, REUSED, GUARDED = "#1f5fa8", "#cfe0f3", "#e8943a"


def draw_timeline(report: "RunReport", path: Path) -> Path:
    """Draws one row for each branch and site, one cell for each tick: computed, computed by a guard, or reused."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = list(dict.fromkeys((call.branch, call.site) for call in report.calls if call.cached))
    forced = {call for calls in report.reasons.values() for call in calls}
    figure = Figure(
        figsize=(max(6.0, 0.18 * report.num_ticks + 2), 1.3 + 0.3 * len(rows)), layout="constrained"
    )
    axes = figure.add_subplot()
    decisions, called = report.decisions, report.called
    for y, (branch, site) in enumerate(rows):
        b, s = report.branches.index(branch), report.sites.index(site)
        for tick in range(report.num_ticks):
            if called[tick, b, s]:
                guarded = (tick, branch, site) in forced
                color = REUSED if not decisions[tick, b, s] else GUARDED if guarded else COMPUTED
                axes.barh(y, 0.9, left=tick - 0.45, height=0.8, color=color)
    axes.set_yticks(range(len(rows)), [f"{site} · {branch}" for branch, site in rows])
    axes.invert_yaxis()
    axes.set_xlim(-0.6, report.num_ticks - 0.4)
    axes.set_xlabel("tick")
    axes.set_title(f"{report.method}: {report.compute_fraction:.0%} of the work computed", fontsize=10)
    patches = [
        Patch(color=c, label=n)
        for c, n in ((COMPUTED, "computed"), (GUARDED, "by guard"), (REUSED, "reused"))
    ]
    axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
