"""What a schedule gives at other numbers of steps or other resolutions; it is resampled by noise level.

`python scripts/search/transfer.py dit outputs/dit/dp-shared-54 --steps 16 36 --json evals/results/transfer/dit.json`
"""

from pathlib import Path
from typing import Any

from diffcache import Schedule
from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.comparison import Comparison, as_json, table
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import write_result
from diffcache.evals.testbeds import splits, zoo
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.uniform import UniformConfig


def main() -> None:
    options = parser(__doc__)
    options.add_argument("model", choices=splits.FITTING)
    options.add_argument("schedule", type=Path, help="folder of a saved one")
    options.add_argument("--steps", type=int, nargs="*", default=[], help="besides the schedule's own")
    options.add_argument("--sizes", type=int, nargs="*", default=[], help="heights and widths in pixels")
    options.add_argument("--samples", type=int, default=8)
    options.add_argument("--json", type=Path, help="file for the rows")
    args = options.parse_args()
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
        write_result(args.json, header(str(pipe.device)), {"rows": as_json(rows)})


if __name__ == "__main__":
    main()
