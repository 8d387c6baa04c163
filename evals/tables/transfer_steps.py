"""The table of docs/measured/trajectory.md on covariances that were measured in another number of steps."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.harness.results import stored
from diffcache.evals.tables.gains import ALIKE, even_of, gained

Row = Mapping[str, Any]
"""The PSNR in dB of each contender in one setting, with the testbed's name."""


def transfer_steps_table() -> str:
    """Medians over testbeds for each number of steps and of ticks; and where the carried covariance loses."""
    found = stored("transfer_steps")
    rows = [{"testbed": name, **row} for name, result in found.items() for row in result["rows"]]
    result = next(iter(found.values()))
    header = result["header"]
    return (
        f"{markdown_table(_head(rows[0]), named_once(_medians(rows)))}\n\n{_against(rows)}\n\n"
        f"{len(found)} testbeds, {result['samples']} samples, {header['device']}, {header['date']}."
    )


def _head(row: Row) -> list[str]:
    there = f"measured in {row['measured_in']} steps"
    return ["steps", "ticks", "`speedup=`", there, "measured in as many steps"]


def _medians(rows: Sequence[Row]) -> list[list[str]]:
    """Of what each contender gains on even ticks."""
    lines = []
    for steps, ticks in dict.fromkeys((row["steps"], row["ticks"]) for row in rows):
        alike = [row for row in rows if (row["steps"], row["ticks"]) == (steps, ticks)]
        gains = [
            median(row[name] - even_of(row) for row in alike) for name in ("prior", "transferred", "own")
        ]
        lines.append([str(steps), str(ticks), *(f"{gain:+.1f}" for gain in gains)])
    return lines


def _against(rows: Sequence[Row]) -> str:
    """What the carried covariance gains on each other contender, in words, with the rows that lose."""
    others: dict[str, Callable[[Row], float]] = {
        "`speedup=`": lambda row: float(row["prior"]),
        "what was measured in as many steps": lambda row: float(row["own"]),
        "even ticks": even_of,
    }
    lines = []
    for title, other in others.items():
        gains = {
            f"{row['testbed']} {row['ticks']} of {row['steps']}": row["transferred"] - other(row)
            for row in rows
        }
        losses = [f"{name} ({gain:+.1f})" for name, gain in gains.items() if gain < -ALIKE]
        named = f": {', '.join(losses)}" if losses else ""
        lines.append(f"- against {title}: {gained([*gains.values()])}{named}")
    return "\n".join(lines)
