"""What the error model saves: a screened evolution beside a plain one that renders five times as many candidates.

Both search schedules for the policy testbed's sub-layers: `python scripts/search/screening.py --json evals/results/screening/policy.json`.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import write_result
from diffcache.evals.testbeds.diffusion_policy import PolicyTransformer
from diffcache.evals.testbeds.policy_loop import policy_calls, policy_loop
from diffcache.profiling.recording.record import record
from diffcache.profiling.searching.evolving import Budget, EvolutionSettings, evolve
from diffcache.profiling.searching.probing import probed
from diffcache.profiling.searching.scoring import Scorer
from diffcache.profiling.searching.space import Space
from diffcache.schedulers.search.pareto import hypervolume


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=3, help="searches of each kind")
    options.add_argument("--candidates", type=int, default=300, help="of the plain evolution, seeds included")
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--samples", type=int, default=8)
    options.add_argument("--json", type=Path, help="file for the rows")
    args = options.parse_args()
    loop, calls = policy_loop(PolicyTransformer.load()), policy_calls(0, args.samples, args.steps)
    space = probed(loop, calls, Space(record(loop, calls, sites="sub-layer")))
    rows = []
    for seed in range(args.seeds):
        searches = {}
        for name, screened, candidates, children in (
            ("plain", False, args.candidates, 8),
            ("screened", True, args.candidates // 5, 2),
        ):
            with TemporaryDirectory() as folder:
                budget = Budget(candidates=candidates)
                settings = EvolutionSettings(children=children, screened=screened, seed=seed)
                searches[name] = evolve(Scorer(loop, calls, space), Path(folder), budget, settings)
        reference = searches["plain"].scores.max(0).values
        volumes = {name: hypervolume(search.front.scores, reference) for name, search in searches.items()}
        row = {
            name: {"candidates": len(s.tables), "hypervolume": volumes[name]} for name, s in searches.items()
        }
        rows.append({"seed": seed, **row, "ratio": volumes["screened"] / volumes["plain"]})
        print(rows[-1])
    if args.json:
        write_result(args.json, header(), {"rows": rows})


if __name__ == "__main__":
    main()
