"""The table of docs/rows.md: some tokens beside tick caching."""

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import stored


def rows_table() -> str:
    """A row for each testbed, number of steps and way to run a call."""
    head = ["testbed", "steps", "way", "work", "ticks", "dB to own full run", "dB to truth", "dB kept"]
    rows = (
        [
            testbed,
            str(row["steps"]),
            row["way"],
            f"{row['work']:.2f}",
            f"`{row['ticks']}`",
            "" if row["own"] is None else f"{row['own']:.1f}",
            f"{row['truth']:.1f}",
            f"{row['kept']:.1f}" if "kept" in row else "",
        ]
        for testbed, result in stored("rows").items()
        for row in result["rows"]
    )
    samples = {result["samples"] for result in stored("rows").values()}
    return f"{markdown_table(head, rows)}\n\n{', '.join(map(str, sorted(samples)))} samples, medians."
