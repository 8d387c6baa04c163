"""The tables of docs/measured/calibration.md, by the names of their places there."""

from collections.abc import Mapping
from typing import Any

from diffcache.evals.experiments.ertacache import TICKS
from diffcache.evals.experiments.hindsight import METHODS
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import Result, stored

ADAPTIVE = "EasyCache"
"""The method whose ticks differ between testbeds."""
INTERPOLATED = (
    "EasyCache has the threshold 0.1 with hindsight; without it is interpolated to the ticks in brackets."
)

Results = Mapping[str, Result]
"""By testbed."""


def calibration_tables() -> dict[str, str]:
    """All of them, from the stored results."""
    ertacache, hindsight, promises = stored("ertacache"), stored("hindsight"), stored("promises")
    profilingdit = stored("profilingdit")
    return {
        "ablation": f"{_ablation(ertacache)}\n\n{_source(ertacache)}",
        "profilingdit": f"{_profilingdit(profilingdit)}\n\n{_source(profilingdit)}",
        "promises": f"{_promises(promises)}\n\n{_source(promises)}",
        "hindsight": f"{_hindsight(hindsight)}\n\n{_source(hindsight)}",
    }


def _source(found: Results) -> str:
    """Where a table's numbers come from."""
    one = next(iter(found.values()))
    samples, steps = (
        " or ".join(map(str, sorted({result[name] for result in found.values()})))
        for name in ("samples", "steps")
    )
    dates = " and ".join(sorted({result["header"]["date"] for result in found.values()}))
    return f"{samples} samples on each side, {steps} steps, {one['header']['device']}, {dates}."


def _ablation(found: Results) -> str:
    """A row for each schedule and its corrections: PSNR on held-out samples, and in brackets on those of the calibration.

    What was measured at another number of ticks has no cell.
    """
    columns = [
        {(row["schedule"], row["name"]): row for row in result["rows"] if row["ticks"] == TICKS}
        for result in found.values()
    ]
    fewer = [key for rows in columns for key in rows if key[0].startswith(f"{TICKS} steps")]
    keys = dict.fromkeys([*columns[0], *fewer])
    lines = ([*key, *(_reached(rows.get(key)) for rows in columns)] for key in keys)
    return markdown_table(["schedule", "corrections", *found], lines)


def _reached(row: Mapping[str, Any] | None) -> str:
    """A cell; bold where the calibration keeps these corrections."""
    if row is None:
        return "-"
    fitted = "" if row["calibration"] is None else f" ({row['calibration']:.1f})"
    text = f"{row['held_out']:.1f}{fitted}"
    return f"**{text}**" if row["kept"] else text


def _profilingdit(found: Results) -> str:
    """A row for ProfilingDiT and each control; the head has the compute."""
    head = ["method", *(f"{testbed}, {result['compute']:.1%}" for testbed, result in found.items())]
    by_method = zip(*(result["rows"] for result in found.values()), strict=True)
    lines = ([rows[0]["name"], *(f"{row['held_out']:.1f}" for row in rows)] for rows in by_method)
    return markdown_table(head, lines)


def _promises(found: Results) -> str:
    """A row for each target: the share of the samples that keep it, where it was verified, and unseen."""
    rows = (
        [
            testbed,
            f"{row['target']:.0f} dB",
            f"{row['compute']:.0%}",
            *(f"{row[side]:.0%}" for side in ("kept_where_verified", "bound", "kept_unseen")),
            f"{row['given_away']:+.1f} dB",
        ]
        for testbed, result in found.items()
        for row in result["quality"]
    )
    head = [
        "testbed",
        "target",
        "compute",
        "kept, verified",
        "of all at least",
        "kept, unseen",
        "given away",
    ]
    return markdown_table(head, rows)


def _hindsight(found: Results) -> str:
    """A row for each method: PSNR without / with hindsight, and the computed ticks where the method chooses them."""

    def cell(row: Mapping[str, Any]) -> str:
        ticks = f" ({row['ticks']})" if row["method"] == ADAPTIVE else ""
        return f"{row['psnr_without']:.1f} / {row['psnr_with']:.1f}{ticks}"

    columns = {name: result["rows"] for name, result in found.items()}
    columns["sd, noise"] = found["sd"]["rows_of_noise_prediction"]
    by_method = [{row["method"]: row for row in rows} for rows in columns.values()]
    shown = [name for name in METHODS if all(name in rows for rows in by_method)]
    lines = ([name, *(cell(rows[name]) for rows in by_method)] for name in shown)
    interpolated = f"\n\n{INTERPOLATED}" if ADAPTIVE in shown else ""
    return markdown_table(["method", *columns], lines) + interpolated
