"""Searches schedules for the policy testbed and lets it act with them: `python scripts/search/policy.py`.

An example of a denoiser with its own loop. BAC makes a schedule for each sub-layer of a transformer decoder, with and
without its Bubbling Union. They are compared with one schedule for all sub-layers, and with uniform reuse.
"""

import argparse
from pathlib import Path
from typing import Any

from diffcache import accelerate, report, restore
from diffcache.config import CacheConfig
from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import write_result
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds.diffusion_policy import PolicyTransformer
from diffcache.evals.testbeds.policy_loop import policy_calls, policy_loop
from diffcache.evals.testbeds.reaching_task import success_rate
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.record import record
from diffcache.profiling.searching.dynamic_programming import dynamic_programming
from diffcache.profiling.searching.probing import probed
from diffcache.profiling.searching.space import Space
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.search.bac import adaptive_caching


def candidates(space: Space, response: Space, share: float) -> dict[str, CacheConfig]:
    """Methods by name, at about a share of the full run's work.

    Args:
        space: recorded.
        response: the same space, probed.
        share: of the work.
    """
    updates = round(share * space.num_ticks)
    plain = space.schedule(adaptive_caching(space.drifts, updates), {"method": "bac without union"})
    schedules = {
        "bac, without the union": plain,
        "bac": dynamic_programming(space, share, "bac"),
        "shared, by drift": dynamic_programming(space, share),
        "shared, by response": dynamic_programming(response, share),
    }
    uniform = UniformConfig(interval=round(1 / share), site="sub-layer")
    return {"uniform": uniform, **{name: ReplayConfig(schedule=made) for name, made in schedules.items()}}


def row(
    net: PolicyTransformer, full: FullRuns, config: CacheConfig, args: argparse.Namespace
) -> dict[str, Any]:
    """What a method costs, how near its actions are to the full run's, and how often it reaches the goal."""
    fidelity = float(psnr(full.cached(config), full.pictures).median())
    accelerate(net, config)
    success = success_rate(net, args.episodes, args.steps, seed=2)
    compute = report(net).compute_fraction
    restore(net)
    return {"compute": round(compute, 4), "psnr": round(fidelity, 2), "success": round(success, 4)}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--compute", type=float, nargs="+", default=[0.2, 0.1], help="shares of the work")
    options.add_argument(
        "--samples", type=int, default=64, help="observations to search on, and as many to compare on"
    )
    options.add_argument("--episodes", type=int, default=64, help="in which the goal is to be reached")
    options.add_argument("--json", type=Path, help="file for the rows")
    args = options.parse_args()
    net = PolicyTransformer.load()
    loop = policy_loop(net)
    full = FullRuns(loop, policy_calls(1, args.samples, args.steps))
    success = round(success_rate(net, args.episodes, args.steps, seed=2), 4)
    rows = [{"name": "full run", "compute": 1.0, "psnr": 100.0, "success": success}]
    calls = policy_calls(0, args.samples, args.steps)
    space = Space(record(loop, calls, sites="sub-layer"))
    response = probed(loop, calls, space, each_site=False)
    for share in args.compute:
        for name, config in candidates(space, response, share).items():
            rows.append({"name": f"{name}, {share:.0%}", **row(net, full, config, args)})
    for each in rows:
        print("| {name} | {compute:.0%} | {psnr:.1f} | {success:.0%} |".format(**each))
    if args.json:
        write_result(args.json, header(), {"rows": rows})


if __name__ == "__main__":
    main()
