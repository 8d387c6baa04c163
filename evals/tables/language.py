"""The tables of docs/language.md and docs/measured/language.md."""

from typing import Any

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import stored
from diffcache.evals.language.run_names import RunName
from diffcache.evals.language.staleness import Point, curve_table, default_table

BASE = "plain, blocks, quota"
NOT_SHOWN = "dkv-decode"
"""Slower than the default in each row."""


def language_tables() -> dict[str, str]:
    points = [Point(**point) for point in stored("language")["staleness"]["points"]]
    speed = stored("language_speed")
    return {
        "language_curve": curve_table(points),
        "language_default": default_table(points),
        "language_bound": _bound(speed["bound"]["rows"]),
        "language_host": _host(speed["host"]["a_call"]),
        "language_speed": _speed(speed["batch_1"]["tokens_per_second"]["1"]),
    }


def _bound(rows: list[dict[str, Any]]) -> str:
    head = ["cache", "written in", "batch", "faster", "operations allow", "share"]
    return markdown_table(
        head,
        [
            [
                row["cache"],
                row["written in"],
                str(row["batch"]),
                f"{row['faster']:.1f}x",
                f"{row['bound']:.1f}x",
                f"{row['share']:.0%}",
            ]
            for row in rows
        ],
    )


def _host(calls: dict[str, dict[str, float]]) -> str:
    head = ["cache", "launches", "operations"]
    rows = [[name, f"{cost['launches']:,.0f}", f"{cost['operations']:,.0f}"] for name, cost in calls.items()]
    return markdown_table(head, rows)


def _speed(rates: dict[str, float]) -> str:
    """One row for each cache, way of writing and rule."""
    rows = []
    for name, rate in rates.items():
        run = RunName.of(name)
        if run.cache != NOT_SHOWN:
            alone, total = rate / rates[run.plain], rate / rates[BASE]
            rows.append([*run, f"{rate:.0f}", f"{alone:.2f}x", f"{total:.2f}x"])
    return markdown_table(["cache", "written in", "rule", "tokens per second", "alone", "total"], rows)
