"""Writes the tables of docs/calibration.md and docs/hindsight.md from evals/results/: ertacache_*.json,
profilingdit_*.json, aims_*.json, drift.json and hindsight_*.json.

Each stands between the comments `<!-- table: name -->` and `<!-- end -->`; the text around them is left as it is.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffcache.evals.harness.provenance import RESULTS
from diffcache.evals.testbeds import zoo

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / name for name in ("calibration.md", "hindsight.md")]
TABLE = re.compile(r"(?<=<!-- table: )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
Results = dict[str, dict[str, Any]]


def results(what: str) -> Results:
    """By testbed, those that have been measured."""
    paths = {name: RESULTS / f"{what}_{name}.json" for name in zoo.NAMES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def table(head: list[str], rows: Iterator[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sources(found: Results) -> str:
    """Where a table's numbers come from."""
    one = next(iter(found.values()))
    sides = ", ".join(f"{name} {data['samples']}" for name, data in found.items())
    torch, diffusers = one["versions"]["torch"], one["versions"]["diffusers"]
    return (
        f"Samples on each side: {sides}; {one['steps']} steps, {one['device']}, {one['date']}, torch {torch}, "
        f"diffusers {diffusers}."
    )


def ablation(found: Results) -> str:
    """One row for each contender, held-out PSNR, and in brackets the calibration's."""
    names: dict[tuple[str, str], None] = {}
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for testbed, data in found.items():
        for row in data["rows"]:
            key = row["schedule"], row["name"]
            names.setdefault(key)
            fitted = "" if row["calibration"] is None else f" ({row['calibration']:.1f})"
            text = f"{row['held_out']:.1f}{fitted}{' at ' + str(row['ticks']) if row['ticks'] != 26 else ''}"
            cells.setdefault(key, {})[testbed] = f"**{text}**" if row["kept"] else text
    rows = ([*key, *(cells[key].get(testbed, "-") for testbed in found)] for key in names)
    return table(["schedule", "corrections", *found], rows)


def quality(found: Results) -> str:
    def reached(aim: dict[str, Any], side: str) -> str:
        return f"{aim[side]:.1f} ({aim[side] - aim['target']:+.1f})"

    rows = (
        [
            testbed,
            f"{aim['target']:.0f}",
            f"{aim['compute_fraction']:.0%}",
            reached(aim, "psnr_held_out"),
            reached(aim, "psnr_unseen"),
        ]
        for testbed, data in found.items()
        for aim in data["quality"]
    )
    return table(["testbed", "target", "compute", "kept apart", "unseen"], rows)


def speedup(found: Results) -> str:
    aims = [aim["speedup"] for aim in next(iter(found.values()))["speedup"]]
    by_aim = {
        aim: {t: row for t, data in found.items() for row in data["speedup"] if row["speedup"] == aim}
        for aim in aims
    }
    rows = (
        [
            str(aim),
            str(next(iter(of.values()))["ticks"]),
            *(
                " / ".join(
                    f"{psnr:.1f}" for psnr in (of[testbed]["psnr"], *of[testbed]["psnr_even"].values())
                )
                for testbed in found
            ),
        ]
        for aim, of in by_aim.items()
    )
    return table(["speedup", "ticks", *found], rows)


def profilingdit(found: Results) -> str:
    def blocks(data: dict[str, Any]) -> list[str]:
        cached = ", ".join(data["cached"])
        scores = [f"{name.rpartition('.')[2]}: {score:.2f}" for name, score in data["foreground"].items()]
        return [cached, ", ".join(scores)]

    rows = (
        [
            testbed,
            *blocks(data),
            f"{data['rows'][0]['compute']:.0%}",
            *(f"{row['held_out']:.1f}" for row in data["rows"]),
        ]
        for testbed, data in found.items()
    )
    names = [row["name"] for row in next(iter(found.values()))["rows"]]
    return table(["testbed", "cached", "share of the foreground", "compute", *names], rows)


def drift() -> str:
    found = json.loads((RESULTS / "drift.json").read_text())["spearman"]
    columns = list(next(iter(found.values())))
    return table(
        ["testbed", *columns], ([name, *(f"{row[c]:.2f}" for c in columns)] for name, row in found.items())
    )


def hindsight(found: Results) -> str:
    """One row for each method: without and with it, and the computed ticks where they differ."""

    def cell(row: dict[str, Any]) -> str:
        ticks = row["ticks_without"], row["ticks_with"]
        more = f" ({ticks[0]}, {ticks[1]})" if ticks[0] != ticks[1] else ""
        return f"{row['psnr_without']:.1f} / {row['psnr_with']:.1f}{more}"

    columns = {name: data["rows"] for name, data in found.items()}
    columns["sd, noise"] = found["sd"]["rows_of_noise_prediction"]
    by_method = zip(*columns.values(), strict=True)
    return table(["method", *columns], ([rows[0]["method"], *map(cell, rows)] for rows in by_method))


def seconds(ablated: Results, aimed: Results) -> str:
    rows = (
        [
            testbed,
            str(ablated[testbed]["cpu_seconds_of_calibration"]) if testbed in ablated else "-",
            str(aimed[testbed]["cpu_seconds_of_a_tune"]) if testbed in aimed else "-",
        ]
        for testbed in zoo.NAMES
    )
    return table(["testbed", "ERTACache", "a quality target"], rows)


def main() -> None:
    ablated, aimed, looked_back = results("ertacache"), results("aims"), results("hindsight")
    blocks = results("profilingdit")
    tables = {
        "ablation": f"{ablation(ablated)}\n\n{sources(ablated)}",
        "quality": f"{quality(aimed)}\n\n{sources(aimed)}",
        "speedup": speedup(aimed),
        "profilingdit": f"{profilingdit(blocks)}\n\n{sources(blocks)}",
        "drift": drift(),
        "hindsight": f"{hindsight(looked_back)}\n\n{sources(looked_back)}",
        "seconds": seconds(ablated, aimed),
    }
    for page in PAGES:
        page.write_text(
            TABLE.sub(lambda found: f"{found[1]}{found[2]}\n{tables[found[1]]}\n\n", page.read_text())
        )


if __name__ == "__main__":
    main()
