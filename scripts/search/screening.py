"""What the error model saves: a screened evolution beside a plain one that renders five times as many candidates.

Both search schedules for the policy testbed's sub-layers: `python scripts/search/screening.py --json evals/results/screening/policy.json`.
"""

from pathlib import Path

from diffcache.evals.experiments.screening import measured
from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import write_result


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=3, help="searches of each kind")
    options.add_argument("--candidates", type=int, default=300, help="of the plain evolution, seeds included")
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--samples", type=int, default=8)
    options.add_argument("--json", type=Path, help="file for the rows")
    args = options.parse_args()
    rows = measured(args.seeds, args.candidates, args.steps, args.samples)
    if args.json:
        write_result(args.json, header(), {"rows": rows})


if __name__ == "__main__":
    main()
