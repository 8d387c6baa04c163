"""Draws the decisions of a run as a picture. What was done is told by shape as well as by colour."""

from collections.abc import Mapping
from html import escape
from pathlib import Path

from diffcache.schedulers.errors import ConfigError, from_extra

KINDS = {
    "computed": ("#0b6e4f", 16),
    "some tokens": ("#b7791f", 10),
    "by guard": ("#12304a", 16),
    "reused": ("#6fae97", 4),
}
"""By what was done at a tick: its colour, and the height of its bar (of 16)."""

STEP, BAR, ROW, LEGEND, TALL = 12, 10, 38, 34, 16
"""Sizes in pixels: from tick to tick, of a bar, from row to row, of the legend, and of a full bar."""

SAID = {"by guard": "computed by a guard"}
"""What the legend says where a word needs more."""

ENTRY, AXIS = 150, 30
"""Widths of an entry of the legend, and of the name of the axis."""


def timeline_svg(num_ticks: int, rows: Mapping[str, Mapping[int, str]], title: str = "") -> str:
    """One row of bars for each branch and site: tall where it was computed, low where it was reused.

    Args:
        num_ticks: length of the rows.
        rows: by label, what was done at each tick that was called: a key of KINDS.
        title: in the first line; "" for none.

    Returns:
        An `<svg>` element that needs nothing else. Text has the page's colour.
    """
    top = 22 if title else 0
    used = [kind for kind in KINDS if any(kind in row.values() for row in rows.values())]
    width, height = max(STEP * num_ticks + 4 + AXIS, ENTRY * len(used)), top + ROW * len(rows) + 14 + LEGEND
    said = f"{title} {'; '.join(rows)}: {num_ticks} ticks"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" class="timeline" '
            f'role="img" aria-label="{escape(said)}" font-family="system-ui, sans-serif" font-size="11" fill="currentColor">'
        )
    ]
    if title:
        parts.append(f'<text x="2" y="14" font-size="13">{escape(title)}</text>')
    for i, (label, row) in enumerate(rows.items()):
        base = top + ROW * (i + 1)
        parts.append(f'<text x="2" y="{base - TALL - 6}">{escape(label)}</text>')
        parts += (_bar(2 + STEP * tick, base, done, f"tick {tick}: {done}") for tick, done in row.items())
    axis = top + ROW * len(rows) + 12
    every = 5 if num_ticks <= 60 else 10
    parts += (
        f'<text x="{2 + STEP * tick + BAR / 2}" y="{axis}" text-anchor="middle">{tick}</text>'
        for tick in range(0, num_ticks, every)
    )
    parts.append(f'<text x="{2 + STEP * num_ticks + 4}" y="{axis}">tick</text>')
    for i, kind in enumerate(used):
        parts.append(_bar(2 + ENTRY * i, axis + LEGEND - 8, kind, kind))
        parts.append(f'<text x="{18 + ENTRY * i}" y="{axis + LEGEND - 10}">{SAID.get(kind, kind)}</text>')
    return "".join([*parts, "</svg>"])


def _bar(x: float, base: float, kind: str, said: str) -> str:
    """A bar that stands on `base`; one that a guard forced has a white notch."""
    colour, height = KINDS[kind]
    notch = (
        f'<circle cx="{x + BAR / 2}" cy="{base - TALL + 5}" r="2.4" fill="#fff"/>'
        if kind == "by guard"
        else ""
    )
    return (
        f'<g><title>{escape(said)}</title><rect x="{x}" y="{base - height}" width="{BAR}" height="{height}" rx="1.5" '
        f'fill="{colour}"/>{notch}</g>'
    )


def draw_timeline(title: str, num_ticks: int, rows: Mapping[str, Mapping[int, str]], path: Path) -> Path:
    """Draws one row for each branch and site, one bar for each tick, as SVG or PNG by the path's ending.

    Args:
        title: of the picture.
        num_ticks: length of the rows.
        rows: by label, what was done at each tick that was called: a key of KINDS.
        path: of the file; its folder is made if there is none.

    Raises:
        ConfigError: its ending is none of a picture.
    """
    if path.suffix == ".svg":
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = timeline_svg(num_ticks, rows, title).replace(
            'fill="currentColor"', 'fill="#444" style="background:#fff"'
        )
        path.write_text(drawn, encoding="utf-8")
        return path
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ImportError(
            f"{path.suffix} needs matplotlib: {from_extra('evals')}, or pass a path that ends in .svg."
        ) from error

    if path.suffix.lower().removeprefix(".") not in Figure().canvas.get_supported_filetypes():
        raise ConfigError(
            f"{path.name!r} does not say what picture to draw: give a path that ends in .png or .svg."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(max(6.0, 0.18 * num_ticks + 2), 1.3 + 0.4 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for y, row in enumerate(rows.values()):
        for tick, done in row.items():
            colour, height = KINDS[done]
            share = 0.8 * height / TALL
            axes.barh(y + (0.8 - share) / 2, 0.9, left=tick - 0.45, height=share, color=colour)
            if done == "by guard":
                axes.plot(tick, y - 0.2, "o", color="white", markersize=2.5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(-0.6, num_ticks - 0.4)
    axes.set_xlabel("tick: tall is computed, low is reused, a white dot is a guard")
    axes.set_title(title, fontsize=10)
    patches = [Patch(color=colour, label=done) for done, (colour, _) in KINDS.items()]
    axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
    return path
