"""What a schedule gives at other numbers of steps or other resolutions; it is resampled by noise level.

`python scripts/search/transfer.py dit outputs/dit/dp-shared-54 --steps 16 36`
"""

from pathlib import Path

from diffcache import Schedule
from diffcache.evals.experiments.transfer import transferred
from diffcache.evals.harness.command_line import parser, run, whole
from diffcache.evals.harness.comparison import as_json, table
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import write_result
from diffcache.evals.testbeds import splits, zoo


def main() -> None:
    options = parser(__doc__)
    options.add_argument("model", choices=splits.FITTING)
    options.add_argument("schedule", type=Path, help="folder of a saved one")
    options.add_argument("--steps", type=whole, nargs="*", default=[], help="besides the schedule's own")
    options.add_argument("--sizes", type=whole, nargs="*", default=[], help="heights and widths in pixels")
    options.add_argument("--samples", type=whole, default=8)
    options.add_argument("--json", type=Path, help="file for the rows")
    args = options.parse_args()
    if args.sizes and args.model == "dit":
        options.error("--sizes: dit draws one size only")
    pipe, schedule = zoo.load(args.model), Schedule.from_pretrained(args.schedule)
    rows = list(transferred(pipe, args.model, schedule, args.steps, args.sizes, args.samples))
    print(table(rows))
    if args.json:
        write_result(args.json, header(str(pipe.device)), {"rows": as_json(rows)})


if __name__ == "__main__":
    run(main)
