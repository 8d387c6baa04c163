"""Ticks reused inside long rollouts on the causal testbed: quality along the video, and the share of computed ticks.

`python scripts/measure/rollout_reuse.py` writes evals/results/rollout_reuse/causal_wan.json, in about five CPU minutes.
"""

from argparse import Namespace
from typing import Any

from diffcache.evals.experiments import rollout_reuse
from diffcache.evals.harness.command_line import measure_testbeds, parser_for_testbeds


def measured(testbed: str, args: Namespace) -> dict[str, Any]:
    """A row for each way of making a chunk."""
    rows = []
    for row in rollout_reuse.measured(args.samples):
        rows.append(row)
        print(row, flush=True)
    return {"steps": rollout_reuse.STEPS, "policy": rollout_reuse.POLICY, "rows": rows}


if __name__ == "__main__":
    measure_testbeds(
        parser_for_testbeds(__doc__, samples=8, names=("causal_wan",)), "rollout_reuse", measured
    )
