"""What a schedule loses at another number of steps or another resolution, resampled by noise level.

`python scripts/search/transfer.py dit outputs/dit/dp-shared-54 --steps 16 36 --json evals/results/search_transfer_dit.json`
"""

import argparse
import json
from pathlib import Path
from typing import Any

from diffcache import Schedule
from diffcache.evals.harness.comparison import Comparison, as_json, table
from diffcache.evals.harness.provenance import provenance
from diffcache.evals.testbeds import zoo
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.uniform import UniformConfig


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=zoo.NAMES)
    parser.add_argument("schedule", type=Path)
    parser.add_argument("--steps", type=int, nargs="*", default=[])
    parser.add_argument("--sizes", type=int, nargs="*", default=[], help="heights and widths in pixels")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    pipe, schedule = zoo.load(args.model), Schedule.from_pretrained(args.schedule)
    settings: list[tuple[int, dict[str, Any]]] = [(steps, {}) for steps in (schedule.num_ticks, *args.steps)]
    settings += [(schedule.num_ticks, {"height": size, "width": size}) for size in args.sizes]
    interval = round(schedule.num_ticks / (schedule.decisions.any(-1).any(-1).sum().item()))
    rows = []
    for steps, size in settings:
        call = {**zoo.sample_call(args.model, 0, steps, args.samples), **size}
        comparison = Comparison(pipe, call, referenced=False)
        name = f"{steps} steps" + (f", {size['height']} pixels" if size else "")
        config = ReplayConfig(schedule=schedule, resample=True)
        rows += [
            comparison.method(f"{name}: the schedule", config),
            comparison.method(f"{name}: uniform hold, every {interval}", UniformConfig(interval=interval)),
        ]
    print(table(rows))
    if args.json:
        args.json.write_text(
            json.dumps({**provenance(str(pipe.device)), "rows": as_json(rows)}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
