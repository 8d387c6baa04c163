"""The tables of docs/measured/rows.md: some tokens beside tick caching, controls, RegionE's parts, and tokens that a cache chooses."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.harness.results import Result, stored

Row = Result
Where = tuple[str, str]
"""A testbed, and what is done with it."""

TASKS = {"edit": "edits", "inpaint": "inpainting"}
"""What is done, and where results hold it."""

STEPS: Mapping[str, Sequence[int]] = {"kontext_turbo": (4, 8), "kontext": (4, 8, 28), "flux": (4, 8, 28)}
"""The numbers of steps that the page shows, in this order of testbeds; all are stored."""

CACHED = ("full", "default", "speedup=2", "uniform, every 2nd, the last", "half of the steps")

SHOWN: Mapping[str, Sequence[str]] = {
    "edit": (*CACHED, "rows=region", "default, rows=region", "speedup=2, rows=region", "regione"),
    "inpaint": (*CACHED, "rows=mask", "default, rows=mask", "speedup=2, rows=mask"),
}
"""Ways to run a call that the page shows; more are stored."""

COMPARED = (("kontext_turbo", "edit"), ("kontext", "edit"), ("flux", "inpaint"))
"""Where they are shown."""

CONTROLS = (
    "rows=region, K/V withheld (control)",
    "rows=mask, K/V withheld (control)",
    "rows=region, elsewhere (control)",
    "regione, elsewhere (control)",
    "regione: region and true K/V (oracle), elsewhere (control)",
)

PARTS = ("regione: region", "regione: region and K/V", "regione: region and true K/V (oracle)", "regione")
"""Of RegionE, as the paper's ablation adds them."""

ERRORS = (
    "rows=mask",
    "rows=mask: K/V held",
    "rows=mask: K/V on a parabola",
    "rows=mask: true K/V (oracle)",
    "rows=mask: true outputs outside (oracle)",
)
"""What the error of inpainting is made of, and what was tried against it."""

CHOSEN = (
    "half of the steps",
    "three quarters of the steps",
    "rows: the half that moves most",
    "rows: the other half (control)",
    "rows: ToCa by attention",
    "rows: half by attention",
)
"""Tokens that a cache chooses by itself, and what they are beside."""

LEFT_UNSAID = (" (control)", " (oracle)", ", every 2nd, the last", "rows=mask: ", "regione: ")
"""Of the names of ways, what the tables' titles say."""

SOURCES = (("turbo", 4),)
"""Where these are shown."""


def rows_tables() -> dict[str, str]:
    """All of them, by name."""
    return {
        "rows": _table(COMPARED, lambda where: SHOWN[where[1]], _figures),
        "row_controls": _table(COMPARED, lambda where: CONTROLS, lambda row: _interval(row["lost"])),
        "row_parts": _table(COMPARED, lambda where: PARTS, _own),
        "row_errors": _table([("kontext_turbo", "inpaint")], lambda where: ERRORS, _own),
        "row_sources": _sources_table(),
    }


def _table(
    wanted: Sequence[Where], ways: Callable[[Where], Sequence[str]], cell: Callable[[Row], str]
) -> str:
    """A line for each way, and a column for each number of steps that any of them has."""
    lines = [(where, way, _cells(where, way, cell)) for where in wanted for way in ways(where)]
    lines = [line for line in lines if line[2]]
    steps = sorted({count for _, _, cells in lines for count in cells})
    head = ["testbed", "way", *(f"{count} steps" for count in steps)]
    rows = (
        [", ".join(where), _said(way), *(cells.get(count, "") for count in steps)]
        for where, way, cells in lines
    )
    return markdown_table(head, named_once(rows))


def _cells(where: Where, way: str, cell: Callable[[Row], str]) -> dict[int, str]:
    """What there is to say of a way, by the number of steps."""
    cells = {row["steps"]: cell(row) for row in _measured(where) if row["way"] == way}
    return {steps: said for steps, said in cells.items() if said}


def _measured(where: Where) -> Iterator[Row]:
    """Every row that may be shown."""
    testbed, task = where
    result = stored("rows").get(testbed, {})
    return (row for row in result.get(TASKS[task], ()) if row["steps"] in STEPS[testbed])


def _figures(row: Row) -> str:
    """Work, dB to the own full run, and in brackets to the true solution."""
    own = f" {row['own'][0]:.1f}" if "own" in row else ""
    truth = f" ({row['truth'][0]:.1f})" if "truth" in row else ""
    return f"{row['work']:.2f}:{own}{truth}" if own or truth else ""


def _own(row: Row) -> str:
    """Work, and dB to the own full run."""
    return f"{row['work']:.2f}: {row['own'][0]:.1f}"


def _said(way: str) -> str:
    for part in LEFT_UNSAID:
        way = way.replace(part, "")
    return way


def _interval(values: Sequence[float]) -> str:
    mean, low, high = values
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _sources_table() -> str:
    head = ["testbed, steps", "way", "work", "dB to own full run"]
    rows = (
        [f"{testbed}, {row['steps']}", _said(row["way"]), f"{row['work']:.2f}", _interval(row["own"])]
        for testbed, result in stored("row_sources").items()
        for row in result["rows"]
        if row["way"] in CHOSEN and (testbed, row["steps"]) in SOURCES
    )
    return markdown_table(head, named_once(rows))
