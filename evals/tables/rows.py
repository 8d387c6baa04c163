"""The tables of docs/measured/rows.md: some tokens beside tick caching, controls, RegionE's parts, and tokens that a cache chooses."""

from collections.abc import Callable, Iterator, Sequence

from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.harness.results import Result, stored

TASKS = {"edits": "edit", "inpainting": "inpaint"}
"""What results hold, and how the tables say it."""

PARTS = ("regione: region", "regione: region and K/V", "regione")
"""Of RegionE, as the paper's ablation adds them."""

SHOWN = {"kontext_turbo": (4, 8), "kontext": (8, 28), "flux": (8, 28)}
"""The numbers of steps for which the page shows all ways; all are stored."""

Row = Result
Where = tuple[str, str]
"""A testbed, and what is done with it."""


def rows_tables() -> dict[str, str]:
    """All of them, by name."""
    return {
        "rows": _ways_table(),
        "row_controls": _controls_table(),
        "row_parts": _parts_table(),
        "row_errors": _errors_table(),
        "row_sources": _sources_table(),
    }


def _measured() -> Iterator[tuple[Where, Row]]:
    """Every row of every testbed."""
    for testbed, result in stored("rows").items():
        for key, said in TASKS.items():
            yield from (((testbed, said), row) for row in result.get(key, ()))


def _table(columns: dict[str, str], wanted: Callable[[Where, Row], bool]) -> str:
    head = ["testbed", "steps", "way", "work", *columns.values()]
    rows = (
        [
            ", ".join(where),
            str(row["steps"]),
            row["way"],
            f"{row['work']:.2f}",
            *(_cell(row, key) for key in columns),
        ]
        for where, row in _measured()
        if wanted(where, row)
    )
    return markdown_table(head, named_once(rows))


def _ways_table() -> str:
    """Every way to run a call that is neither broken nor part of an ablation."""
    columns = {
        "ticks": "ticks",
        "own": "dB to own full run",
        "region": "there in the region",
        "truth": "dB to truth",
    }
    return _table(
        columns,
        lambda where, row: (
            row["way"] != "full" and row["steps"] in SHOWN[where[0]] and not _is_of_another_table(row["way"])
        ),
    )


def _is_of_another_table(way: str) -> bool:
    return way.endswith("(control)") or ": " in way


def _controls_table() -> str:
    """Each control, and how much it loses in the region beside what it breaks."""
    columns = {"ticks": "ticks", "region": "dB in the region", "lost": "lost there"}
    return _table(columns, lambda where, row: "lost" in row)


def _parts_table() -> str:
    """RegionE with one part after another."""
    columns = {"own": "dB to own full run", "region": "there in the region"}
    return _table(columns, lambda where, row: row["way"] in PARTS)


def _errors_table() -> str:
    """What the error of inpainting is made of, and what was tried against it."""
    columns = {"ticks": "ticks", "own": "dB to own full run", "region": "there in the region"}
    return _table(
        columns,
        lambda where, row: (
            where[1] == "inpaint"
            and (row["way"].endswith("(oracle)") or row["way"].startswith("rows=mask"))
            and not row["way"].endswith("(control)")
        ),
    )


def _sources_table() -> str:
    head = ["testbed", "steps", "way", "work", "ticks", "dB to own full run"]
    rows = (
        [testbed, str(row["steps"]), row["way"], f"{row['work']:.2f}", _cell(row, "ticks"), _cell(row, "own")]
        for testbed, result in stored("row_sources").items()
        for row in result["rows"]
        if row["way"] != "full"
    )
    return markdown_table(head, named_once(rows))


def _cell(row: Row, key: str) -> str:
    """A figure with its interval; a row of ticks."""
    value = row.get(key)
    if value is None:
        return ""
    return f"`{value}`" if isinstance(value, str) else _interval(value)


def _interval(values: Sequence[float]) -> str:
    mean, low, high = values
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"
