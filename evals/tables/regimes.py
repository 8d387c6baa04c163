"""The summary of docs/regimes.md: how far cached runs are above plain runs that compute as many ticks."""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from diffcache.evals.experiments.regimes import METHODS
from diffcache.evals.harness.results import Result, stored
from diffcache.evals.tables.gains import ALIKE
from diffcache.profiling.tuning.plain_steps import STEPS

Row = Mapping[str, Any]

BELOW: Mapping[str, float] = {"default": -1.0, "speedup=2": -3.0}
"""dB: a regime below this is named. The default is to lose nowhere."""

TOLD = "speedup=2"
"""The method whose report says where fewer steps may be as good."""

NAMES = {"flow": "flow", "v_prediction": "velocity", "epsilon": "noise", "sample": "sample"}


def regimes_summary() -> str:
    """What each method gains over all regimes, and those in which it loses."""
    results = stored("regimes")
    rows = [row for prediction in NAMES if prediction in results for row in results[prediction]["rows"]]
    return _summary(rows, results)


def difference(row: Row, method: str) -> float | None:
    """dB over as many plain ticks; None where nothing was reused."""
    cell = row[method]
    return None if cell["ticks"] == cell["of"] else round(cell["psnr"] - cell["fewer_steps"], 1)


def _summary(rows: list[Row], results: Mapping[str, Result]) -> str:
    lines = []
    for method in METHODS:
        gained = sorted(value for row in rows if (value := difference(row, method)) is not None)
        below = list(_named_below(rows, method))
        text = (
            f"`{method}`: {len(rows) - len(gained)} of {len(rows)} regimes without any reuse; in the others "
            f"{gained[0]:+.1f} to {gained[-1]:+.1f} dB, median {median(gained):+.1f}. "
        )
        named = f": {'; '.join(below)}" if below else ""
        lines.append(f"- {text}More than {-BELOW[method]:g} dB below in {len(below)}{named}.")
    lines.append(_told(rows))
    result = next(iter(results.values()))
    header, versions = result["header"], result["header"]["versions"]
    lines.append(
        f"\n{result['samples']} samples in each regime, {header['device']}, {header['date']}, torch {versions['torch']}, "
        f"diffusers {versions['diffusers']}."
    )
    return "\n".join(lines)


def _told(rows: list[Row]) -> str:
    """How often the report of a run with a speed-up says that fewer steps may be as good, in words."""
    told = [any(STEPS in note for note in row[TOLD]["notes"]) for row in rows]
    losing = [(difference(row, TOLD) or 0.0) < -ALIKE for row in rows]
    both = sum(one and other for one, other in zip(told, losing, strict=True))
    return (
        f"- The report of `{TOLD}` says in {sum(told)} regimes that fewer steps may be as good, among them {both} of the {sum(losing)} "
        f"in which it is more than {ALIKE:g} dB below."
    )


def _named_below(rows: list[Row], method: str) -> Iterator[str]:
    for row in rows:
        gained = difference(row, method)
        if gained is not None and gained < BELOW[method]:
            prediction = NAMES[row["prediction"]]
            where = f"{prediction}, {row['noise_scheduler']}, g={row['guidance']}, {row['steps']} steps"
            yield f"{where} ({gained:+.1f})"
