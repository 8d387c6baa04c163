"""Writes the table of docs/hindsight.md from evals/results/hindsight_*.json, between its two comments."""

import json
import re
from pathlib import Path
from typing import Any

from diffcache.evals import zoo
from diffcache.evals.provenance import RESULTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "hindsight.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)


def cell(row: dict[str, Any]) -> str:
    without, with_ = (f"{row[f'psnr_{key}']:.1f}" for key in ("without", "with"))
    ticks = row["ticks_without"], row["ticks_with"]
    return f"{without} / {with_}" + (f" ({ticks[0]}, {ticks[1]})" if ticks[0] != ticks[1] else "")


def main() -> None:
    found = {name: json.loads((RESULTS / f"hindsight_{name}.json").read_text()) for name in zoo.NAMES}
    columns = {name: data["rows"] for name, data in found.items()}
    columns["sd, noise"] = found["sd"]["rows_of_noise_prediction"]
    lines = [f"| method | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for rows in zip(*columns.values(), strict=True):
        lines.append(f"| {rows[0]['method']} | {' | '.join(cell(row) for row in rows)} |")
    one = found["sd"]
    lines += ["", f"{one['samples']} samples, {one['steps']} steps, {one['device']}, {one['date']}."]
    table = "\n".join(lines)
    PAGE.write_text(TABLE.sub(lambda _: f"\n{table}\n\n", PAGE.read_text()))


if __name__ == "__main__":
    main()
