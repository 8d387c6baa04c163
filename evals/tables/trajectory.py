"""The tables of docs/trajectory.md: the method on each testbed, with a prior that has never seen it, and after one render."""

from statistics import median
from typing import Any

from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.harness.results import stored

EVEN = ("even", "even, order 2")
SHOWN = {"prior": "`speedup=`", "tuned": "`tune`"}


def trajectory_table() -> str:
    """A row for each testbed and speed-up; and the medians of the differences to even ticks."""
    found = stored("trajectory")
    rows = [(testbed, row) for testbed, result in found.items() for row in result["rows"]]
    head = ["testbed", "ticks", "evenly spaced", *SHOWN.values(), "as many plain steps"]
    lines = ([testbed, str(row["ticks"]), *_figures(row)] for testbed, row in rows)
    result = next(iter(found.values()))
    header = result["header"]
    return (
        f"{markdown_table(head, named_once(lines))}\n\n{_differences([row for _, row in rows])}\n\n"
        f"{result['samples']} samples of {result['rows'][0]['steps']} steps, {header['device']}, {header['date']}."
    )


def _figures(row: dict[str, Any]) -> list[str]:
    """PSNR of even ticks, the better of two orders; of what is shown; and of as many plain steps."""
    figures = (max(row[name] for name in EVEN), *(row[name] for name in SHOWN), row["fewer_steps"])
    return [f"{figure:.1f}" for figure in figures]


def _differences(rows: list[dict[str, Any]]) -> str:
    """What each contender gains on even ticks, in words."""
    lines = []
    for name, title in SHOWN.items():
        gains = [row[name] - max(row[even] for even in EVEN) for row in rows]
        below = sum(gain < -0.5 for gain in gains)
        lines.append(
            f"- {title} against even ticks: median {median(gains):+.1f} dB, from {min(gains):+.1f} to {max(gains):+.1f}; more than 0.5 dB "
            f"below in {below} of {len(gains)} rows"
        )
    return "\n".join(lines)


def threshold_table() -> str:
    """A row for each testbed and threshold; and how far expected errors are from measured ones."""
    found = stored("threshold")
    rows = [(testbed, row) for testbed, result in found.items() for row in result["rows"]]
    head = [
        "testbed", "threshold", "ticks of 50", "expected error", "measured error", "dB to the full run", "evenly spaced",
        "as many plain steps",
    ]  # fmt: skip
    lines = (
        [
            testbed, f"{row['threshold']:g}", str(row["ticks"]), f"{row['expected']:.2%}", f"{row['measured']:.2%}",
            *(f"{row[name]:.1f}" for name in ("psnr", "even", "fewer_steps")),
        ]
        for testbed, row in rows
    )  # fmt: skip
    gains = [row["psnr"] - row["even"] for _, row in rows if row["ticks"] < row["steps"]]
    below = sum(gain < -0.5 for gain in gains)
    ratios = [row["measured"] / row["expected"] for _, row in rows if row["expected"]]
    near = sum(0.5 <= ratio <= 2 for ratio in ratios)
    result = next(iter(found.values()))
    header = result["header"]
    return (
        f"{markdown_table(head, named_once(lines))}\n\n"
        f"- against even ticks: median {median(gains):+.1f} dB, from {min(gains):+.1f} to {max(gains):+.1f}; more than 0.5 dB below in "
        f"{below} of {len(gains)} rows\n"
        f"- measured over expected error: median {median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}; within a factor of two "
        f"in {near} of {len(ratios)} rows\n\n"
        f"{result['samples']} samples, {header['device']}, {header['date']}."
    )
