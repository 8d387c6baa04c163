"""The tables of docs/calibration.md and docs/hindsight.md, by the names of their places there."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from diffcache.evals.experiments.ertacache import TICKS
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import Result, stored
from diffcache.evals.testbeds import splits

Results = Mapping[str, Result]
"""By testbed."""


def calibration_tables() -> dict[str, str]:
    """All of them, from the stored results."""
    ertacache, targets, blocks = stored("ertacache"), stored("targets"), stored("profilingdit")
    hindsight, promises = stored("hindsight"), stored("promises")
    return {
        "ablation": f"{_ablation(ertacache)}\n\n{_source(ertacache)}",
        "quality": f"{_quality(targets)}\n\n{_source(targets)}",
        "promises": f"{_promises(promises)}\n\n{_source(promises)}",
        "profilingdit": f"{_profilingdit(blocks)}\n\n{_source(blocks)}",
        "drift": _drift(stored("drift")),
        "hindsight": f"{_hindsight(hindsight)}\n\n{_source(hindsight)}",
        "seconds": _seconds(ertacache, targets),
    }


def _source(found: Results) -> str:
    """Where a table's numbers come from, by the first of its files."""
    one = next(iter(found.values()))
    header = one["header"]
    sides = ", ".join(f"{name} {result['samples']}" for name, result in found.items())
    torch, diffusers = header["versions"]["torch"], header["versions"]["diffusers"]
    return (
        f"Samples on each side: {sides}; {one['steps']} steps, {header['device']}, {header['date']}, torch {torch}, "
        f"diffusers {diffusers}."
    )


def _ablation(found: Results) -> str:
    """A row for each schedule and its corrections: PSNR on held-out samples, and in brackets on those of the calibration."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for testbed, result in found.items():
        for row in result["rows"]:
            fitted = "" if row["calibration"] is None else f" ({row['calibration']:.1f})"
            ticks = "" if row["ticks"] == TICKS else f" at {row['ticks']}"
            text = f"{row['held_out']:.1f}{fitted}{ticks}"
            key = row["schedule"], row["name"]
            cells.setdefault(key, {})[testbed] = f"**{text}**" if row["kept"] else text
    rows = ([*key, *(of.get(testbed, "-") for testbed in found)] for key, of in cells.items())
    return markdown_table(["schedule", "corrections", *found], rows)


def _quality(found: Results) -> str:
    def reached(row: Mapping[str, Any], side: str) -> str:
        return f"{row[side]:.1f} ({row[side] - row['target']:+.1f})"

    rows = (
        [
            testbed,
            f"{row['target']:.0f}",
            f"{row['compute_fraction']:.0%}",
            reached(row, "psnr_held_out"),
            reached(row, "psnr_unseen"),
        ]
        for testbed, result in found.items()
        for row in result["quality"]
    )
    return markdown_table(["testbed", "target", "compute", "kept apart", "unseen"], rows)


def _promises(found: Results) -> str:
    """A row for each target: the share of the samples that keep it, where it was chosen, verified, and unseen."""
    rows = (
        [
            testbed,
            f"{row['target']:.0f}",
            f"{row['compute']:.0%}",
            *(
                f"{row[side]:.0%}"
                for side in ("kept_where_chosen", "kept_where_verified", "bound", "kept_unseen")
            ),
            f"{row['given_away']:+.1f} dB",
        ]
        for testbed, result in found.items()
        for row in result["quality"]
    )
    head = [
        "testbed",
        "target",
        "compute",
        "kept, chosen",
        "kept, verified",
        "of all at least",
        "kept, unseen",
        "given away",
    ]
    return markdown_table(head, rows)


def _profilingdit(found: Results) -> str:
    def rows() -> Iterator[list[str]]:
        for testbed, result in found.items():
            scores = [
                f"{block.rpartition('.')[2]}: {score:.2f}" for block, score in result["foreground"].items()
            ]
            compute = f"{result['rows'][0]['compute']:.0%}"
            psnrs = [f"{row['held_out']:.1f}" for row in result["rows"]]
            yield [testbed, ", ".join(result["cached"]), ", ".join(scores), compute, *psnrs]

    names = [row["name"] for row in next(iter(found.values()))["rows"]]
    return markdown_table(["testbed", "cached", "share of the foreground", "compute", *names], rows())


def _drift(found: Results) -> str:
    columns = list(next(iter(found.values()))["spearman"])
    rows = (
        [testbed, *(f"{result['spearman'][column]:.2f}" for column in columns)]
        for testbed, result in found.items()
    )
    return markdown_table(["testbed", *columns], rows)


def _hindsight(found: Results) -> str:
    """A row for each method: PSNR without / with hindsight, and the computed ticks where they differ."""

    def cell(row: Mapping[str, Any]) -> str:
        without, with_it = row["ticks_without"], row["ticks_with"]
        ticks = f" ({without}, {with_it})" if without != with_it else ""
        return f"{row['psnr_without']:.1f} / {row['psnr_with']:.1f}{ticks}"

    columns: dict[str, Iterable[Mapping[str, Any]]] = {name: result["rows"] for name, result in found.items()}
    columns["sd, noise"] = found["sd"]["rows_of_noise_prediction"]
    by_method = zip(*columns.values(), strict=True)
    return markdown_table(["method", *columns], ([rows[0]["method"], *map(cell, rows)] for rows in by_method))


def _seconds(ertacache: Results, targets: Results) -> str:
    rows = (
        [
            testbed,
            str(ertacache[testbed]["cpu_seconds_of_calibration"]) if testbed in ertacache else "-",
            str(targets[testbed]["cpu_seconds_of_a_tune"]) if testbed in targets else "-",
        ]
        for testbed in splits.FITTING
    )
    return markdown_table(["testbed", "ERTACache", "a quality target"], rows)
