"""The tables of docs/searched.md, by the names of their places there."""

from collections.abc import Mapping
from typing import Any

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import Result, stored

POLICY = "policy"
"""The result that is of a robot policy, with other columns."""


def searched_tables() -> dict[str, str]:
    """Both, from the stored results."""
    found = stored("searched")
    policy = found.pop(POLICY)
    return {"searched": _whole_denoisers(found), "searched_policy": _policy(policy)}


def _whole_denoisers(found: Mapping[str, Result]) -> str:
    """A row for each testbed: even ticks, and how far what was searched lies above as many."""
    rows = {testbed: result["rows"] for testbed, result in found.items()}
    one = next(iter(found.values()))
    budgets = [row["ticks"] for row in _of(next(iter(rows.values())), "dp", one["steps"])]
    others = list(
        dict.fromkeys(row["steps"] for row in next(iter(rows.values())) if row["steps"] != one["steps"])
    )
    head = ["testbed"]
    for ticks in budgets:
        head += [f"even, {ticks} ticks", "dp", "evolved"]
    head += [f"dp of {budgets[0]}, at {steps} steps" for steps in others]
    lines = []
    for testbed, its in rows.items():
        line = [testbed]
        for dp, evolved in zip(
            *(_of(its, search, one["steps"]) for search in ("dp", "evolved")), strict=True
        ):
            line += [f"{dp['even']:.1f}", _gain(dp), _gain(evolved)]
        line += [_gain(_of(its, "dp", steps)[0]) for steps in others]
        lines.append(line)
    header = one["header"]
    source = (
        f"{one['samples']} samples, {one['steps']} steps; searched on {one['searched_on']} others, confirmed on "
        f"{one['confirmed_on']}; {header['device']}, {header['date']}."
    )
    return f"{markdown_table(head, lines)}\n\n{source}"


def _of(rows: list[Mapping[str, Any]], search: str, steps: int) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["search"] == search and row["steps"] == steps]


def _gain(row: Mapping[str, Any]) -> str:
    """dB over as many even ticks as the schedule itself computes."""
    return f"{row['psnr'] - row['even']:+.1f}"


def _policy(result: Result) -> str:
    """A row for each schedule, beside even ticks at its own compute."""
    lines = []
    for row in result["rows"]:
        has_control = "even_psnr" in row
        lines.append(
            [
                row["name"] if row["share"] == 1 else f"{row['name']}, {row['share']:.0%}",
                f"{row['compute']:.1%}",
                f"{row['psnr']:.1f}" if has_control else "",
                f"{row['even_psnr']:.1f}" if has_control else "",
                f"{row['goal']:.0%}",
                f"{row['even_goal']:.0%}" if has_control else "",
            ]
        )
    head = [
        "schedule",
        "compute",
        "PSNR of the actions",
        "even ticks, interpolated to that compute",
        "goal reached",
        "even ticks, interpolated",
    ]
    header = result["header"]
    source = (
        f"{2 * result['samples']} observations, {result['episodes']} episodes, {result['steps']} steps, "
        f"{header['device']}, {header['date']}."
    )
    return f"{markdown_table(head, lines)}\n\n{source}"
