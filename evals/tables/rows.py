"""The tables of docs/measured/rows.md: some tokens beside tick caching, controls, RegionE's parts, and tokens that a cache chooses."""

from collections.abc import Callable, Iterator, Sequence

from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.harness.results import Result, stored

TASKS = {"edits": "edit", "inpainting": "inpaint"}
"""What results hold, and how the tables say it."""

PARTS = ("regione: region", "regione: region and K/V", "regione")
"""Of RegionE, as the paper's ablation adds them."""

SHOWN = {("kontext_turbo", "edit"): (4,), ("kontext_turbo", "inpaint"): (8, 28)}
"""The numbers of steps that the page shows; all are stored."""

LEFT_OUT = (
    "even, speedup=2",
    "three quarters of the steps",
    "rows=context",
    "rows=mask of the edit",
    "speedup=4",
)
"""Ways that the page leaves out, as it does the default with rows."""

SOURCES = (("turbo", 4),)
"""Where tokens that a cache chooses by itself are shown."""

CONTROLS = ("regione, elsewhere (control)", "rows=region, elsewhere (control)", "K/V withheld (control)")
"""Ends of the names of controls that the page shows."""

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
    """Every row that may be shown."""
    for testbed, result in stored("rows").items():
        for key, said in TASKS.items():
            where = testbed, said
            yield from ((where, row) for row in result.get(key, ()) if row["steps"] in SHOWN.get(where, ()))


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
    return _table({"ticks": "ticks", "own": "dB to own full run"}, _is_a_way)


def _is_a_way(where: Where, row: Row) -> bool:
    name = row["way"]
    left_out = name in ("full", *LEFT_OUT) or name.startswith("default, rows")
    return not (left_out or _is_of_another_table(name))


def _is_of_another_table(way: str) -> bool:
    return way.endswith("(control)") or ": " in way


def _controls_table() -> str:
    """Each control, and how much it loses in the region beside what it breaks."""
    columns = {"region": "dB in the region", "lost": "lost there"}
    return _table(columns, lambda where, row: row["way"].endswith(CONTROLS))


def _parts_table() -> str:
    """RegionE with one part after another."""
    return _table({"own": "dB to own full run"}, lambda where, row: row["way"] in PARTS)


def _errors_table() -> str:
    """What the error of inpainting is made of, and what was tried against it."""
    return _table(
        {"own": "dB to own full run"},
        lambda where, row: where[1] == "inpaint" and row["way"].startswith("rows=mask: "),
    )


def _sources_table() -> str:
    head = ["testbed, steps", "way", "work", "dB to own full run"]
    rows = (
        [f"{testbed}, {row['steps']}", row["way"], f"{row['work']:.2f}", _cell(row, "own")]
        for testbed, result in stored("row_sources").items()
        for row in result["rows"]
        if row["way"] != "full" and (testbed, row["steps"]) in SOURCES
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
