"""The table of docs/rows.md: some tokens beside tick caching."""

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import stored


def rows_table() -> str:
    """A row for each testbed, number of steps and way to run a call."""
    columns = {
        "own": "dB to own full run",
        "region": "there in the region",
        "truth": "dB to truth",
        "kept": "dB kept",
    }
    head = ["testbed", "steps", "way", "work", "ticks", *columns.values()]
    rows = (
        [
            testbed,
            str(row["steps"]),
            row["way"],
            f"{row['work']:.2f}",
            f"`{row['ticks']}`",
            *("" if row.get(name) is None else f"{row[name]:.1f}" for name in columns),
        ]
        for testbed, result in stored("rows").items()
        for row in result["rows"]
    )
    return markdown_table(head, rows)


def row_sources_table() -> str:
    """Tokens that a cache chooses by itself, beside tick caching and fewer steps."""
    rows = (
        [
            testbed,
            str(row["steps"]),
            row["way"],
            f"{row['work']:.2f}",
            f"`{row['ticks']}`",
            f"{row['own']:.1f}",
        ]
        for testbed, result in stored("row_sources").items()
        for row in result["rows"]
        if row["own"] is not None
    )
    return markdown_table(["testbed", "steps", "way", "work", "ticks", "dB to own full run"], rows)
