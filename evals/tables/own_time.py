"""The section of docs/compatibility.md on what a cache costs while it skips nothing."""

from typing import Any

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import read_result, result_path

HEAD = """## Own time

What attaching costs while nothing is skipped: processor time of a tick on a small Flux (30 blocks) minus that of the plain
model in the same round, medians with 95 % intervals (`{command}`, {date}, {device}).
"Plain again" is a second plain copy: a difference within its interval means nothing.
"""

FIRST_TICKS = """A method inside a denoiser finds its sites in the first tick of the first run. On a Flux of 57 blocks, that tick over a plain
tick of the same copy, and first ticks of later runs against later ticks of the same runs (`{command}`, {date}, {device}):
"""

TEN_PICTURES = """Ten pictures in a row on a Flux of {blocks} blocks, {ticks} ticks each, the first run included, with nothing skipped: processor time
minus that of the plain model, median of {repeats} series (`{command}`, {date}, {device}):
"""

SHOWN = (
    "plain again (A/A)", "diffcache, trajectory (the default)", "diffcache, fbcache", "diffcache, taylorseer (every block)",
    "Diffusers, TaylorSeer (every block)", "cache-dit, F1", "cache-dit, DBPrune (every block but one)",
)  # fmt: skip
"""Variants that the page shows; all are stored."""


def own_time_section() -> str:
    parts = [_per_tick(), _first_ticks(), _ten_pictures()]
    return "\n".join(f"{text}\n{table}\n" for text, table in parts)


def _per_tick() -> tuple[str, str]:
    found = read_result(result_path("engine_beside_peers", "cpu"))
    lines = [
        [
            row["variant"],
            "{own_ms:+.2f} [{interval_95_ms[0]:+.2f}, {interval_95_ms[1]:+.2f}]".format(**row),
            f"{row['own_share']:+.1%}",
        ]
        for row in found["rows"][1:]
        if row["variant"] in SHOWN
    ]
    table = markdown_table(["", "own time per tick, ms", "share of the plain tick"], lines)
    return HEAD.format(**found["header"]), table


def _first_ticks() -> tuple[str, str]:
    found = read_result(result_path("first_ticks", "cpu"))
    lines = [
        [
            row["method"],
            "{first_tick:.2f} [{first_tick_95[0]:.2f}, {first_tick_95[1]:.2f}]".format(**row),
            _over("later_runs_first_tick", row),
        ]
        for row in found["rows"]
    ]
    heads = ["", "first run's first tick, plain ticks", "later runs' first tick, over a later one"]
    return FIRST_TICKS.format(**found["header"]), markdown_table(heads, lines)


def _over(name: str, row: dict[str, Any]) -> str:
    """A ratio and its interval, as what they are above 1."""
    low, high = row[f"{name}_95"]
    return f"{row[name] - 1:+.1%} [{low - 1:+.1%}, {high - 1:+.1%}]"


def _ten_pictures() -> tuple[str, str]:
    found = read_result(result_path("ten_pictures", "cpu"))
    lines = [
        [
            row["variant"],
            f"{row['ten_pictures_own_ms']:+.0f}",
            f"{row['first_picture_own_ms']:+.0f}",
            "{later_picture_own_ms:+.0f} [{later_picture_own_95[0]:+.0f}, {later_picture_own_95[1]:+.0f}]".format(
                **row
            ),
        ]
        for row in found["rows"][1:]
    ]
    about = {
        **found["header"],
        **{key: found[key] for key in ("ticks", "repeats")},
        "blocks": sum(found["blocks"]),
    }
    heads = ["", "ten pictures, ms", "the first, ms", "each later one, ms"]
    return TEN_PICTURES.format(**about), markdown_table(heads, lines)
