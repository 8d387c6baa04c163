"""The table of docs/regimes.md on testbeds on which nothing was fitted."""

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import stored


def judging_table() -> str:
    """A row for each testbed, length and method."""
    found = stored("judging")
    rows = (
        [
            testbed,
            str(row["steps"]),
            row["method"],
            str(row["ticks"]),
            f"{row['psnr']:.1f}",
            f"{row['fewer_steps']:.1f}",
            "no reuse" if row["ticks"] == row["steps"] else f"{row['psnr'] - row['fewer_steps']:+.1f}",
        ]
        for testbed, result in found.items()
        for row in result["rows"]
    )
    head = ["testbed", "steps", "method", "ticks", "PSNR", "as many plain steps", "difference"]
    result = next(iter(found.values()))
    header = result["header"]
    return (
        f"{markdown_table(head, rows)}\n\n{result['samples']} samples, {header['device']}, {header['date']}."
    )
