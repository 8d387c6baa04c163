"""The table of docs/serving.md: requests per second and quality, by who owns the cache."""

from typing import Any

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import read_result, result_path

QUALITIES = (35.0, 40.0, 45.0)
"""PSNR in dB at which contenders are compared."""


def serving_table() -> str:
    """A row for each contender and setting; then the fastest setting of each at two qualities."""
    result = read_result(result_path("serving", "sd3"))
    rows, header = result["rows"], result["header"]
    head = ["", "setting", "calls reused", "requests per second", "PSNR, dB", "own time per batch, ms"]
    lines = [
        [
            row["contender"],
            row["setting"],
            f"{row['hit_rate']:.0%}",
            f"{row['requests_per_second']:.2f}",
            "" if row["psnr"] is None else f"{row['psnr']:.1f}",
            f"{row['own_ms']:.1f}" if row["own_ms"] else "",
        ]
        for row in rows
    ]
    best = "\n".join(f"- {_fastest(rows, quality)}" for quality in QUALITIES)
    return (
        f"{markdown_table(head, lines)}\n\nFastest at a fixed quality, in requests per second of processor time:\n\n{best}\n\n"
        f"{result['requests']} requests, {header['device']}, {header['date']}. Own time is wall time, on a machine that had "
        "other work to do."
    )


def _fastest(rows: list[dict[str, Any]], quality: float) -> str:
    """The fastest setting of each contender that keeps a quality."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        keeps = row["psnr"] is None or row["psnr"] >= quality
        if (
            keeps
            and row["requests_per_second"] > found.get(row["contender"], row)["requests_per_second"] - 1e-9
        ):
            found[row["contender"]] = row
    said = ", ".join(
        f"{name} {row['requests_per_second']:.2f}" + (f" ({row['setting']})" if row["setting"] else "")
        for name, row in found.items()
    )
    missing = [name for name in dict.fromkeys(row["contender"] for row in rows) if name not in found]
    none = f"; at no setting: {', '.join(missing)}" if missing else ""
    return f"{quality:g} dB or more: {said}{none}."
