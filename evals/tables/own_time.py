"""The section of docs/compatibility.md on what a cache costs while it skips nothing."""

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import read_result, result_path

HEAD = """## Own time

What attaching costs while nothing is skipped: processor time of a tick on a small Flux (30 blocks) minus that of the plain
model in the same round, medians with 95 % intervals (`{command}`, {date}, {device}).
"Plain again" is a second plain copy: a difference within its interval means nothing.
"""

SHOWN = (
    "plain again (A/A)", "diffcache, fbcache", "diffcache, taylorseer (every block)",
    "Diffusers, TaylorSeer (every block)", "cache-dit, F1", "cache-dit, DBPrune (every block but one)",
)  # fmt: skip
"""Variants that the page shows; all are stored, an earlier default too."""


def own_time_section() -> str:
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
    return f"{HEAD.format(**found['header'])}\n{table}\n"
