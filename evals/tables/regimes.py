"""The tables of docs/regimes.md: in every regime, how far a cached run is above a plain run that computes as many ticks."""

from collections.abc import Iterator, Mapping
from typing import Any

from diffcache.evals.experiments.regimes import METHODS
from diffcache.evals.harness.markdown import grouped, markdown_table
from diffcache.evals.harness.results import Result, stored

Row = Mapping[str, Any]

BELOW = -3.0
"""dB: a cell below this is named under the tables."""

COLUMNS = tuple((guidance, 25) for guidance in ("1", "3", "5", "7.5", "interval", "rescale")) + tuple(
    ("5", steps) for steps in (8, 12, 20, 50)
)
NAMES = {"flow": "flow", "v_prediction": "velocity", "epsilon": "noise", "sample": "sample"}


def regimes_tables() -> dict[str, str]:
    """A table for each method, and what is to be named."""
    results = stored("regimes")
    rows = [row for prediction in NAMES if prediction in results for row in results[prediction]["rows"]]
    tables = {f"regimes_{name.split('=')[0]}": _table(rows, name) for name in METHODS}
    return {**tables, "regimes_summary": _summary(rows, results)}


def difference(row: Row, method: str) -> float | None:
    """dB over as many plain ticks; None where nothing was reused."""
    cell = row[method]
    return None if cell["ticks"] == cell["of"] else round(cell["psnr"] - cell["fewer_steps"], 1)


def _table(rows: list[Row], method: str) -> str:
    cells: dict[tuple[str, str], dict[tuple[str, int], str]] = {}
    for row in rows:
        key = NAMES[row["prediction"]], row["noise_scheduler"]
        cells.setdefault(key, {})[row["guidance"], row["steps"]] = _cell(row, method)
    head = [f"g={guidance}, {steps}" for guidance, steps in COLUMNS]
    body = ([*key, *(of.get(column, "") for column in COLUMNS)] for key, of in cells.items())
    return markdown_table(["predicts", "noise scheduler", *head], grouped(body))


def _cell(row: Row, method: str) -> str:
    gained = difference(row, method)
    if gained is None:
        return "no reuse"
    text = f"{gained:+.0f} ({row[method]['ticks']})"
    return f"**{text}**" if gained < BELOW else text


def _summary(rows: list[Row], results: Mapping[str, Result]) -> str:
    lines = []
    for method in METHODS:
        gained = sorted(value for row in rows if (value := difference(row, method)) is not None)
        below = list(_named_below(rows, method))
        median = gained[len(gained) // 2]
        text = (
            f"`{method}`: of {len(rows)} regimes {len(rows) - len(gained)} without any reuse; in the others "
            f"{gained[0]:+.1f} to {gained[-1]:+.1f} dB, median {median:+.1f}. "
        )
        named = f"Below by more than 3 dB in {len(below)}: {'; '.join(below)}." if below else ""
        lines.append(f"- {text}{named or 'Nowhere below by more than 3 dB.'}")
    result = next(iter(results.values()))
    header, versions = result["header"], result["header"]["versions"]
    lines.append(
        f"\n{result['samples']} samples in each regime, {header['device']}, {header['date']}, torch {versions['torch']}, "
        f"diffusers {versions['diffusers']}."
    )
    return "\n".join(lines)


def _named_below(rows: list[Row], method: str) -> Iterator[str]:
    for row in rows:
        gained = difference(row, method)
        if gained is not None and gained < BELOW:
            prediction = NAMES[row["prediction"]]
            where = f"{prediction}, {row['noise_scheduler']}, g={row['guidance']}, {row['steps']} steps"
            yield f"{where} ({gained:+.1f})"
