"""The table of docs/measured/rows.md: some tokens beside tick caching."""

from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.harness.results import stored

SHOWN = {"flux": (28,), "kontext": (28,), "kontext_turbo": (4,)}
"""The numbers of steps that the page shows of each testbed; all are stored."""

LEFT_OUT = ("(control)", "full", "without decay", "default, ")
"""Ways that the page leaves out: controls, and what differs little from others."""


def rows_table() -> str:
    """A row for each testbed, number of steps and way to run a call that is shown."""
    columns = {"own": "dB to own full run", "region": "in the region", "truth": "dB to truth"}
    head = ["testbed", "way", "work", "ticks", *columns.values()]
    rows = (
        [
            f"{testbed}, {row['steps']} steps",
            row["way"],
            f"{row['work']:.2f}",
            f"`{row['ticks']}`",
            *("" if row.get(name) is None else f"{row[name]:.1f}" for name in columns),
        ]
        for testbed, result in stored("rows").items()
        for row in result["rows"]
        if row["steps"] in SHOWN[testbed] and not any(part in row["way"] for part in LEFT_OUT)
    )
    return markdown_table(head, named_once(rows))
