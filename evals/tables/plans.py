"""The table of docs/measured/trajectory.md on plans at every number of computed ticks, by what was measured of the pipeline."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import stored
from diffcache.evals.tables.gains import ALIKE

PARTS = {"fewer than a third": (0.0, 1 / 3), "up to half": (1 / 3, 0.5), "more": (0.5, 1.0)}
"""By the share of ticks that is computed: more than the first, and at most the second number."""

HEAD = (
    "testbed",
    *(f"{title} computed" for title in PARTS),
    "all",
    "below even ticks",
    "with its own covariance",
)


def plans_table() -> str:
    """A row for each testbed: the mean gain of `speedup=` on even ticks in dB, and how often it loses."""
    found = stored("plans")
    lines = [[testbed, *_figures(result["rows"])] for testbed, result in found.items()]
    every = [row for result in found.values() for row in result["rows"]]
    header = next(iter(found.values()))["header"]
    return f"{markdown_table(HEAD, [*lines, ['all', *_figures(every)]])}\n\n{header['device']}, {header['date']}."


def _figures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    parts = [
        [row for row in rows if low < row["ticks"] / row["steps"] <= high] for low, high in PARTS.values()
    ]
    below = sum(row["prior"] - row["even"] < -ALIKE for row in rows)
    return [*(_gain(part, "prior") for part in (*parts, rows)), f"{below} of {len(rows)}", _gain(rows, "own")]


def _gain(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    return f"{mean(row[name] - row['even'] for row in rows):+.1f}"
