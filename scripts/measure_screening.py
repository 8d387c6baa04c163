"""What the error model saves: the front of a screened evolution beside that of a plain one with five times the candidates.

On the policy testbed's sub-layers: `python scripts/measure_screening.py --json evals/results/search_screening.json`.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from diffcache.evals.harness.provenance import provenance
from diffcache.evals.testbeds.diffusion_policy import PolicyTransformer
from diffcache.evals.testbeds.policy_loop import planning_calls, policy_loop
from diffcache.profiling.recording.record import record
from diffcache.profiling.searching.evolving import Budget, EvolutionSettings, evolve
from diffcache.profiling.searching.probing import probed
from diffcache.profiling.searching.scoring import Scorer
from diffcache.profiling.searching.space import Space
from diffcache.schedulers.search.pareto import hypervolume


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--candidates", type=int, default=300, help="of the plain evolution, seeds included")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    loop, calls = policy_loop(PolicyTransformer.load()), planning_calls(0, args.samples, args.steps)
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
        args.json.write_text(json.dumps({**provenance("cpu"), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
