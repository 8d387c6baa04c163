"""The table of docs/race.md that compares the contenders' pictures with real ones."""

from typing import Any

from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.harness.results import RESULTS, Result, read_result, result_path
from diffcache.evals.race.distributions import EXPERIMENT, TESTBED
from diffcache.evals.race.entries import TITLES

HEAD = ("", "budget", "compute", "FID", "1000 KID")


def race_fid_table() -> str:
    """A row for each contender and budget that has been measured."""
    path = result_path(EXPERIMENT, TESTBED, RESULTS)
    return fid_table(read_result(path)) if path.exists() else "Not measured yet."


def fid_table(result: Result) -> str:
    """The rows of a result in the usual order, and how they were drawn."""
    rows = sorted(result["rows"], key=lambda row: (TITLES.index(row["title"]), row["budget"] or 0))
    pictures = ", ".join(f"{count:,}" for count in sorted({row["pictures"] for row in rows}))
    dates = ", ".join(sorted({header["date"] for header in (result["header"], *result["renewed"])}))
    return (
        f"{markdown_table(HEAD, named_once(map(_cells, rows)))}\n\n"
        f"{pictures} pictures of each, {result['steps']} steps, denoiser in {result['denoiser']}; "
        f"{result['header']['device']}; {dates}."
    )


def _cells(row: dict[str, Any]) -> list[str]:
    budget = "" if row["budget"] is None else f"{row['budget']:g}x"
    return [_name(row), budget, f"{row['compute']:.0%}", f"{row['fid']:.2f}", f"{1000 * row['kid']:.2f}"]


def _name(row: dict[str, Any]) -> str:
    name = str(row["contender"]).removeprefix("diffcache: ")
    return f"{name}, {row['options']['solver']}" if "solver" in row["options"] else name
