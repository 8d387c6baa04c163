"""What searched schedules give beside as many even ticks, on testbeds and on a robot policy.

`python scripts/measure/searched.py` writes evals/results/searched/<testbed>.json.
"""

from diffcache.evals.experiments import policy_search, searched
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds

if __name__ == "__main__":
    options = parser_for_testbeds(__doc__, names=("dit", "flux", "sd", "policy"))
    options.add_argument("--episodes", type=int, default=128, help="in which the policy acts")
    measure_testbeds(
        options,
        "searched",
        lambda testbed, args: (
            policy_search.measured(2 * args.samples, args.episodes)
            if testbed == "policy"
            else searched.measured(testbed, args.samples)
        ),
    )
