"""Draws the results of `real_size` as a page: for each denoiser a bar for each variant, its speed beside the ideal."""

from html import escape
from pathlib import Path
from typing import Any

from diffcache.evals.harness.results import read_result

WIDTH, ROW, LABEL = 420, 18, 330
COLUMNS = {
    "wall_s": "loop, s",
    "realised": "speed-up",
    "efficiency": "of the ideal",
    "over_ms": "over, ms",
    "reused_ms": "reused tick, ms",
    "host_ms": "host, ms",
}
COLOURS = {"ours": "#2563a8", "diffusers": "#c07a1d", "cache-dit": "#7a4fa3"}
STYLE = "body{font:14px sans-serif;margin:2em}td,th{padding:2px 8px;text-align:right}td:first-child{text-align:left}"


def write_page(folder: Path, path: Path) -> Path:
    """Writes the page of all results in a folder.

    Raises:
        SystemExit: there are none.
    """
    results = [read_result(one) for one in sorted(folder.glob("*.json"))]
    if not results:
        raise SystemExit(f"{folder} holds no results: measure a denoiser first.")
    parts = [_section(result) for result in results]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"<!doctype html><meta charset=utf-8><title>Real size</title><style>{STYLE}</style>{''.join(parts)}"
    )
    return path


def _section(result: dict[str, Any]) -> str:
    header, rows = result["header"], result["rows"]
    title = f"{result['model']}, {result['parameters'] / 1e9:.1f} B, {result['blocks']} blocks"
    tiny = " A tiny model on a dry run: the figures mean nothing." if result["tiny"] else ""
    about = f"{header['device']}, {header['date']}, commit {(header['commit'] or 'unknown')[:12]}.{tiny}"
    drawn = {name: row for name, row in rows.items() if row.get("realised") is not None}
    failed = [f"<li>{escape(name)}: {escape(row['error'])}" for name, row in rows.items() if "error" in row]
    return f"<h2>{escape(title)}</h2><p>{escape(about)}</p>{_chart(drawn)}{_table(drawn)}<ul>{''.join(failed)}</ul>"


def _chart(rows: dict[str, Any]) -> str:
    """A bar as long as the speed-up, and a mark at the ideal."""
    longest = max((max(row["realised"], row["ideal"]) for row in rows.values()), default=1.0)
    bars = []
    for i, (name, row) in enumerate(rows.items()):
        y, scale = i * ROW, WIDTH / longest
        colour = next((found for kind, found in COLOURS.items() if kind in name), "#888")
        ideal = LABEL + row["ideal"] * scale
        bars.append(
            f'<text x="0" y="{y + 13}">{escape(name)}</text>'
            f'<rect x="{LABEL}" y="{y + 3}" width="{row["realised"] * scale:.1f}" height="{ROW - 6}" fill="{colour}"/>'
            f'<line x1="{ideal:.1f}" x2="{ideal:.1f}" y1="{y + 1}" y2="{y + ROW - 1}" stroke="black"/>'
            f'<text x="{LABEL + row["realised"] * scale + 4:.1f}" y="{y + 13}">{row["realised"]:.2f}x</text>'
        )
    height = len(rows) * ROW + 4
    return f'<svg width="{LABEL + WIDTH + 60}" height="{height}" font-size="12">{"".join(bars)}</svg>'


def _table(rows: dict[str, Any]) -> str:
    head = "".join(f"<th>{title}" for title in ("variant", *COLUMNS.values(), "peak, GB", "reads"))
    body = []
    for name, row in rows.items():
        cells = [escape(name), *(_number(row.get(key)) for key in COLUMNS)]
        cells += [f"{row['peak_bytes'] / 2**30:.2f}", str(sum(row.get("reads", {}).values()))]
        body.append(f"<tr>{''.join(f'<td>{cell}' for cell in cells)}")
    return f"<table><tr>{head}{''.join(body)}</table>"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
