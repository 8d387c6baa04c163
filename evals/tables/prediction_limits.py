"""The table of docs/measured/trajectory.md that says how near predictions can come."""

from statistics import median
from typing import Any

from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.harness.results import stored

COLUMNS = {
    "others": "weights fitted to other samples",
    "scored": "to the samples that are scored",
    "each": "to each sample by itself",
    "half": "first half of the blocks computed",
}


def prediction_limits_table() -> str:
    """A row for each testbed and number of ticks."""
    found = stored("prediction_limits")
    rows = [(testbed, row) for testbed, result in found.items() for row in result["rows"]]
    lines = ([testbed, str(row["ticks"]), *(_cell(row[name]) for name in COLUMNS)] for testbed, row in rows)
    medians = [_cell(median(_known(rows, name))) for name in COLUMNS]
    result = next(iter(found.values()))
    header = result["header"]
    return (
        f"{markdown_table(['testbed', 'ticks', *COLUMNS.values()], [*named_once(lines), ['median', '', *medians]])}\n\n"
        f"Weights are fitted to {result['fitted_to']} samples, and scored on {result['samples']} others of {rows[0][1]['steps']} steps; "
        f"{header['device']}, {header['date']}."
    )


def _known(rows: list[tuple[str, dict[str, Any]]], name: str) -> list[float]:
    return [row[name] for _, row in rows if row[name] is not None]


def _cell(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:+.1f}"
