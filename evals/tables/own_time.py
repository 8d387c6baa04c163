"""The section of docs/compatibility.md on what a cache costs while it skips nothing."""

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import read_result, result_path

HEAD = """## Own time

What attaching costs while nothing is skipped: processor time of a tick on a small Flux (30 blocks) minus the plain model's, medians with 95 % intervals
(`{command}`, {date}, {device}). "Plain again" is a second plain copy.
"""

FIRST_TICKS = """A method inside a denoiser finds its sites in the first tick of the first run. On a Flux of 57 blocks that tick takes {least:.2f} to {most:.2f} plain
ticks with {methods}. First ticks of later runs differ by {later_least:+.1%} to {later_most:+.1%} from
their later ticks (`{command}`).
"""

TEN_PICTURES = """Ten pictures in a row on that Flux, {ticks} ticks each, the first run included, with nothing skipped: milliseconds beyond the mean of two plain copies, medians of
{repeats} series with intervals (`{command}`):
"""

SHOWN = (
    "plain again (A/A)", "diffcache, trajectory (the default)", "diffcache, fbcache", "diffcache, taylorseer (every block)",
    "Diffusers, FirstBlockCache", "Diffusers, TaylorSeer (every block)", "cache-dit, F1", "cache-dit, DBPrune (every block but one)",
)  # fmt: skip
"""Variants that the page shows; all are stored."""


def own_time_section() -> str:
    return f"{_per_tick()}\n{_first_ticks()}\n{_ten_pictures()}"


def _per_tick() -> str:
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


def _first_ticks() -> str:
    found = read_result(result_path("first_ticks", "cpu"))
    ticks = [row["first_tick"] for row in found["rows"]]
    later = [row["later_runs_first_tick"] - 1 for row in found["rows"]]
    return FIRST_TICKS.format(
        methods=", ".join(row["method"] for row in found["rows"]),
        least=min(ticks),
        most=max(ticks),
        later_least=min(later),
        later_most=max(later),
        **found["header"],
    )


def _ten_pictures() -> str:
    found = read_result(result_path("ten_pictures", "cpu"))
    lines = [
        [
            row["variant"],
            "{ten_pictures_own_ms:+.0f} [{ten_pictures_own_95[0]:+.0f}, {ten_pictures_own_95[1]:+.0f}]".format(
                **row
            ),
            "{later_picture_own_ms:+.0f} [{later_picture_own_95[0]:+.0f}, {later_picture_own_95[1]:+.0f}]".format(
                **row
            ),
        ]
        for row in found["rows"][1:]
        if row["variant"] in SHOWN
    ]
    text = TEN_PICTURES.format(ticks=found["ticks"], repeats=found["repeats"], **found["header"])
    return f"{text}\n{markdown_table(['', 'ten pictures', 'each later one'], lines)}\n"
