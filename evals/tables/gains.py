"""What contenders gain on each other over rows, in words and in medians. A row has the PSNR in dB of each contender in one setting."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

Row = Mapping[str, Any]
"""With the testbed's name, `steps`, and `ticks` as many as each contender computes."""

EVEN = ("even", "even, order 2")
ALIKE = 0.5
"""Differences that are smaller, in dB, are none."""


def even_of(row: Row) -> float:
    """PSNR of even ticks in dB, the better of two orders."""
    return max(float(row[name]) for name in EVEN)


def gained(gains: Sequence[float]) -> str:
    """What is gained over rows in dB, in words, up to the number of rows that lose."""
    below = sum(gain < -ALIKE for gain in gains)
    return (
        f"median {median(gains):+.1f} dB, from {min(gains):+.1f} to {max(gains):+.1f}; more than {ALIKE} dB below in {below} of "
        f"{len(gains)} rows"
    )


def medians(rows: Sequence[Row], names: Sequence[str]) -> list[list[str]]:
    """A line for each number of steps and of ticks: what contenders gain on even ticks, in the median over testbeds."""
    lines = []
    for steps, ticks in dict.fromkeys((row["steps"], row["ticks"]) for row in rows):
        alike = [row for row in rows if (row["steps"], row["ticks"]) == (steps, ticks)]
        gains = [median(row[name] - even_of(row) for row in alike) for name in names]
        lines.append([str(steps), str(ticks), *(f"{gain:+.1f}" for gain in gains)])
    return lines


def against(rows: Sequence[Row], name: str, others: Mapping[str, Callable[[Row], float]]) -> str:
    """What a contender gains on each other one, in words, with the rows that lose.

    Args:
        rows: all of them.
        name: of the contender.
        others: how the others are called, and their PSNR in a row.
    """
    lines = []
    for title, other in others.items():
        gains = {f"{row['testbed']} {row['ticks']} of {row['steps']}": row[name] - other(row) for row in rows}
        losses = [f"{named} ({gain:+.1f})" for named, gain in gains.items() if gain < -ALIKE]
        named = f": {', '.join(losses)}" if losses else ""
        lines.append(f"- against {title}: {gained([*gains.values()])}{named}")
    return "\n".join(lines)
