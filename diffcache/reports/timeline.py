"""Draws the decisions of a run as a picture."""

from collections.abc import Mapping
from pathlib import Path

COLORS = {"computed": "#1f5fa8", "some tokens": "#7a9e3f", "by guard": "#e8943a", "reused": "#cfe0f3"}
"""By what was done at a tick."""


def draw_timeline(title: str, num_ticks: int, rows: Mapping[str, Mapping[int, str]], path: Path) -> Path:
    """Draws one row for each branch and site, one cell for each tick, as PNG or SVG by the path's ending.

    Args:
        title: of the picture.
        num_ticks: length of the rows.
        rows: by label, what was done at each tick that was called: a key of COLORS.
        path: of the file; its folder is made if there is none.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(max(6.0, 0.18 * num_ticks + 2), 1.3 + 0.3 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for y, row in enumerate(rows.values()):
        for tick, done in row.items():
            axes.barh(y, 0.9, left=tick - 0.45, height=0.8, color=COLORS[done])
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlim(-0.6, num_ticks - 0.4)
    axes.set_xlabel("tick")
    axes.set_title(title, fontsize=10)
    patches = [Patch(color=color, label=done) for done, color in COLORS.items()]
    axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
