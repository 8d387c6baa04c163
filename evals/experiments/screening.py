"""What the error model saves: a screened evolution beside a plain one that renders five times as many candidates."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from diffcache.evals.testbeds.diffusion_policy import PolicyTransformer
from diffcache.evals.testbeds.policy_loop import policy_calls, policy_loop
from diffcache.profiling.recording.record import record
from diffcache.profiling.searching.evolving import Budget, EvolutionSettings, evolve
from diffcache.profiling.searching.probing import probed
from diffcache.profiling.searching.scoring import Scorer
from diffcache.profiling.searching.space import Space
from diffcache.schedulers.search.pareto import hypervolume


def measured(seeds: int, candidates: int, steps: int, samples: int) -> list[dict[str, Any]]:
    """For each seed the hypervolume of both searches' fronts, over the plain one's worst scores.

    Args:
        seeds: searches of each kind.
        candidates: of the plain evolution, its seeds included.
        steps: of the policy's runs.
        samples: observations.
    """
    loop, calls = policy_loop(PolicyTransformer.load()), policy_calls(0, samples, steps)
    scorer = Scorer(loop, calls, probed(loop, calls, Space(record(loop, calls, sites="sub-layer"))))
    rows = []
    for seed in range(seeds):
        searches = {}
        for name, screened, budget, children in (
            ("plain", False, Budget(candidates=candidates), 8),
            ("screened", True, Budget(candidates=candidates // 5), 2),
        ):
            settings = EvolutionSettings(children=children, screened=screened, seed=seed)
            with TemporaryDirectory() as folder:
                searches[name] = evolve(scorer, Path(folder), budget, settings)
        reference = searches["plain"].scores.max(0).values
        volumes = {name: hypervolume(search.front.scores, reference) for name, search in searches.items()}
        row = {
            name: {"candidates": len(search.tables), "hypervolume": volumes[name]}
            for name, search in searches.items()
        }
        rows.append({"seed": seed, **row, "ratio": volumes["screened"] / volumes["plain"]})
        print(rows[-1], flush=True)
    return rows
