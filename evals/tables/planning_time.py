"""The table of docs/measured/trajectory.md on how long a run plans."""

from statistics import median

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import stored

HEAD = {"speedup": "`speedup=3`", "threshold": "the default", "own": "`speedup=3`, own covariance"}


def planning_time_table() -> str:
    """A row for each number of steps: milliseconds, the median over testbeds and the largest."""
    found = stored("planning_time")
    rows = [row for result in found.values() for row in result["rows"]]
    lines = []
    for steps in sorted({row["steps"] for row in rows}):
        times = ([row[name] for row in rows if row["steps"] == steps] for name in HEAD)
        lines.append([str(steps), *(f"{median(each):.0f} ({max(each):.0f})" for each in times)])
    header = next(iter(found.values()))["header"]
    return f"{markdown_table(['steps', *HEAD.values()], lines)}\n\n{len(found)} testbeds, {header['device']}, {header['date']}."
